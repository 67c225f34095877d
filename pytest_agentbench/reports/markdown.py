"""Renders a document as Markdown, and writes report.md.

Texts of models, agents, servers and data are escaped, so that they cannot become a mention, link, image, HTML or other markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from pytest_agentbench.lib.foreign import block, one_line
from pytest_agentbench.reports import phrases
from pytest_agentbench.reports.document import (
    AnyBlock,
    Bullets,
    Chart,
    Code,
    Column,
    Content,
    Document,
    Fact,
    Figure,
    Level,
    Listing,
    Note,
    Section,
    Table,
    TableCell,
    Text,
    spans,
)
from pytest_agentbench.reports.sections import document
from pytest_agentbench.reports.view import RunView
from pytest_agentbench.runs.run_file import Run

_MARKUP = re.compile(r"[\\`*]|(?<![^\W_])_|_(?![^\W_])|~(?=\S)|(?<=\S)~|\](?=[(\[:])|!(?=\[)")  # characters that need a backslash
_TAG, _ENTITY = re.compile(r"<(?=[A-Za-z/!?])"), re.compile(r"&(?=#?\w+;)")
_MENTION, _ADDRESS = re.compile(r"@(?=\w)"), re.compile(r"\b(https?|ftp|mailto|www)(?=:|\.)", re.IGNORECASE)
_BAR = re.compile(r"(?<!\\)((?:\\\\)*)\|")  # a bar that is not escaped yet
#: The start of a list, a heading or a quote.
_OPENING = re.compile(r"(\d{1,9})(?=[.)](?:\s|$))|(?=#{1,6}(?:\s|$)|[-+](?:[-+\s]|$)|>|\[[ xX]\]\s)")
_ROUND = str.maketrans("[]", "()")  # for the title of a picture, where brackets would end the link
SAFE = "%/:?#=&+~@,;"  # characters of an address that need no escape; brackets and markup do
_NOTHING = "<!-- -->"  # invisible on GitHub and GitLab; it breaks up mentions and addresses


def write(run: Run, directory: Path) -> Path:
    """Writes report.md."""
    path = directory / "report.md"
    text = "\n".join(lines(document(RunView(run, directory)), Level.VERBOSE)) + "\n"
    path.write_text(text, encoding="utf-8", errors="backslashreplace")
    return path


def lines(report: Document, level: Level, depth: int = 1) -> Iterator[str]:
    """Yields what a document shows at a level, as lines of Markdown. `depth` is the level of its heading."""
    headline = f": {_words(report.headline.content)}" if report.headline else ""
    yield f"{'#' * depth} {_text(report.title)}{headline}"
    for section in report.at(level).sections:
        yield from _section(section, depth + 1)


def _section(section: Section, depth: int) -> Iterator[str]:
    if title := _text(section.title):
        yield from ("", f"{'#' * depth} {title}")
    before: AnyBlock | Section | None = None
    for each in section.blocks:
        if isinstance(each, Section):
            yield from _section(each, depth + 1)
        else:
            yield from ([] if isinstance(each, Fact) and isinstance(before, Fact) else [""])
            yield from _block(each, continues=isinstance(before, Fact))
        before = each


def _block(each: AnyBlock, *, continues: bool) -> Iterator[str]:
    match each:
        case Fact():
            line = f"**{prose(each.label)}**: {_words(each.content)}" if each.label else _beginning(_words(each.content))
            yield f"{'' if each.label or not continues else '  '}- {line}"
        case Table():
            yield from table([prose(column.title) for column in each.columns], [[*map(_cell, row, each.columns)] for row in each.rows])
        case Bullets():
            yield from (f"- {_beginning(_words(item))}" for item in each.items)
        case Note():
            yield _beginning(_words(each.content))
        case Listing():
            yield fenced(each.text)
        case Figure():
            yield f"![{prose(each.title.translate(_ROUND))}]({quote(each.path, errors='replace')})"
        case Chart():
            yield f"{_beginning(prose(each.title))}: {_words(each.content)}"


def _words(content: Content) -> str:
    return _text(phrases.words(content))


def _beginning(words: str) -> str:
    """Escapes the start of a line, so that it does not become a list, a heading, a quote or a code block."""
    text = words.lstrip()
    mark = _OPENING.match(text)
    return f"{mark[0]}\\{text[mark.end() :]}" if mark else text


def _text(text: Text) -> str:
    return "".join(_code(part) if isinstance(part, Code) else prose(part) for part in spans(text))


def _code(part: Code) -> str:
    """Returns inline code, as a link if it has an address. Other schemes than HTTP are not linked."""
    is_page = part.url.startswith(("https://", "http://"))
    return f"[{code(part.shown)}]({quote(part.url, safe=SAFE, errors='replace')})" if is_page else code(part.shown)


def _cell(cell: TableCell, column: Column) -> str:
    return _text(phrases.cell(cell, column))


def code(text: str) -> str:
    """Returns a text as inline code. Backticks in it become apostrophes."""
    quoted = one_line(text).replace("`", "'")
    return f"`{quoted}`" if quoted else ""


def prose(text: str) -> str:
    """Returns a text in which markup, HTML tags, mentions and addresses have no effect."""
    inert = _MARKUP.sub(lambda mark: f"\\{mark[0]}", _ENTITY.sub("&amp;", one_line(text)))
    inert = _TAG.sub("&lt;", inert)
    return _ADDRESS.sub(lambda scheme: f"{scheme[0]}{_NOTHING}", _MENTION.sub(f"@{_NOTHING}", inert))


def fenced(text: str) -> str:
    """Returns lines as a code block. Its fence is longer than any sequence of backticks in them."""
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{block(text)}\n{fence}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yields the lines of a table. Bars and line breaks in cells are escaped."""
    for row in (header, ["---"] * len(header), *rows):
        yield "| " + " | ".join(_BAR.sub(r"\1\\|", cell).replace("\n", " ") for cell in row) + " |"
