"""Renderers show and escape everything in a document, and contain no sentences."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import pytest

from pytest_agentbench import reports
from pytest_agentbench.lib.foreign import block, one_line
from pytest_agentbench.reports import markdown
from pytest_agentbench.reports.document import Chart, Document, Level, Listing, plain
from pytest_agentbench.reports.page.layout import run_html
from pytest_agentbench.reports.terminal import write_run
from tests.paper import Paper
from tests.reports.every_document import Documents, places, with_text

RENDERERS = ("terminal", "markdown", "html", "comment")

#: Characters that no renderer may write: control characters, marks that change the direction of reading, and lone surrogates.
HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

HOSTILE = {
    "right to left": "a\u202eb\u2066c",
    "long": "x" * 10_000,
    "control": "\x07a\x1b[2J\x1b]0;title\x07\x9b31m\x7f",
    "lines": "a\nb\r\nc\u2028d\x85e\n\n# f",
    "bars": "a | b \\| c \\\\| d ||",
    "backticks": "`a` ``b`` ```\n```",
    "html": "<script>alert(1)</script> <img src=x onerror=1> <!-- </section> <?x ]]> &lt;b&gt; &#60;b&#62; \"'><i>",
    "link": "](javascript:alert(1)) [a](javascript:b) ![c](https://evil.example/x.png) [d][1] [1]: https://evil.example",
    "address": "javascript:alert(1)",
    "mention": "@everyone a@b.example https://evil.example www.evil.example",
    "command": "::error::a ::stop-commands::x ##[error]b ##vso[task.setvariable]",
    "half a letter": "a\ud800b\udfff",
    "nothing": "a\x00b",
    "markup": "**a** _b_ ~~c~~ \\*d\\* __e__ \\",
    "title": "# a",
    "list": "- a",
    "other list": "+ a",
    "numbers": "1. a",
    "task": "[x] a",
    "quote": "> a",
    "rule": "---",
    "code": "\t    a",
}


def on_terminal(document: Document, verbosity: int, width: int) -> list[str]:
    paper = Paper()
    write_run(paper, document, verbosity, width, ["a rollout"])
    return paper.lines


def in_html(document: Document) -> str:
    return run_html(document, lambda name, _titles: f"#{quote(name, errors='replace')}")


def in_markdown(document: Document, level: Level, depth: int = 1) -> list[str]:
    return "\n".join(markdown.lines(document, level, depth)).split("\n")


TERMINALS: Mapping[str, Callable[[Document], list[str]]] = {
    f"terminal {verbosity} {width}": lambda each, verbosity=verbosity, width=width: on_terminal(each, verbosity, width)  # type: ignore[misc]
    for verbosity in (-1, 0, 1, 2)
    for width in (40, 80)
}
MARKDOWN: Mapping[str, Callable[[Document], list[str]]] = {
    **{f"markdown {level.name}": lambda each, level=level: in_markdown(each, level) for level in Level},  # type: ignore[misc]
    "comment": lambda each: in_markdown(replace(each, title="agentbench"), Level.SUMMARY, depth=2),
}


def tame(text: str, document: Document) -> str:
    """Returns a harmless text of the same width and, for a listing, with the same lines."""
    is_listing = any(isinstance(each, Listing) for each in document.blocks())
    return re.sub(r"[^ \n]", "x", block(text) if is_listing else one_line(text))


def pairs(text: str) -> Iterator[tuple[Document, Document]]:
    """Yields documents with a hostile text at each place, each with the same document with a harmless text."""
    for place in range(places()):
        for number, hostile in enumerate(with_text(place, text)):
            yield hostile, with_text(place, tame(text, hostile))[number]


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_terminals(text: str) -> None:
    """On a terminal, no text hides anything, sends control codes or starts a line or a command. Lines keep their width."""
    for hostile, harmless in pairs(text):
        for name, written in TERMINALS.items():
            lines = written(hostile)
            assert [] == [line for line in lines if HIDDEN.search(line) or "\n" in line], (name, hostile)
            assert [] == [line for line in lines if line.strip().startswith("::") or re.search(r"##\w*\[", line)], (name, hostile)
            assert [len(line) for line in written(harmless)] == [len(line) for line in lines], (name, hostile)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_markdown(text: str) -> None:
    """In Markdown, no text creates a line, cell, heading, list, link, picture, HTML, mention or markup."""
    for hostile, harmless in pairs(text):
        for name, written in MARKDOWN.items():
            lines = written(hostile)
            assert not HIDDEN.search("\n".join(lines)), (name, hostile)
            assert shapes(written(harmless)) == shapes(lines), (name, hostile)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_html(text: str) -> None:
    """In HTML, no text changes the elements or their links, and all texts are readable."""
    for hostile, harmless in pairs(text):
        html = in_html(hostile)
        assert not HIDDEN.search(html), hostile
        page = Page(html)
        assert Page(in_html(harmless)).tags == page.tags, hostile
        assert [] == [each for each in page.links if not re.fullmatch(r"#.*|[^#:?]*", each, re.DOTALL)], hostile


class Page(HTMLParser):
    """The elements of a page with the names of their attributes, the targets of its links, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, ...]] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append((tag, *sorted(values), values.get("class") or ""))
        self.links += [value for name in ("href", "src") if (value := values.get(name)) is not None]

    def handle_endtag(self, tag: str) -> None:
        self.tags.append((f"/{tag}",))

    def handle_comment(self, data: str) -> None:
        self.tags.append(("comment", data))

    def handle_decl(self, decl: str) -> None:
        self.tags.append(("declaration", decl))

    def unknown_decl(self, data: str) -> None:
        self.tags.append(("declaration", data))

    def handle_pi(self, data: str) -> None:
        self.tags.append(("instruction", data))

    def handle_data(self, data: str) -> None:
        self.text += data


#: Markup at the beginning of a line of Markdown, also after other such markup.
OPENING = re.compile(r"#{1,6}(?=\s|$)|[-+*](?=\s|$)|\d{1,9}[.)](?=\s|$)|>|[-*_]{3,}$|~{3,}|\[[ xX]\](?=\s)|\[[^\]]*\]:|(?: {4}|\t)(?=\S)")
#: Markup inside a line of Markdown.
ACTIVE = re.compile(
    r"!\[\]\(|<[A-Za-z/!?]|&#?\w+;|@(?=\w)|\][(\[]|\b(?:https?|ftp|mailto|www)(?=[:.])|[`*]|~(?=\S)|(?<=\S)~|(?<![^\W_])_|_(?![^\W_])",
    re.IGNORECASE,
)


def shapes(lines: list[str]) -> list[tuple[str, ...]]:
    """Returns the markup in each line by the rules of CommonMark and GitHub, except in escapes and code."""
    found: list[tuple[str, ...]] = []
    fence = ""
    for line in lines:
        if fence:
            found.append(("code",))
            fence = "" if re.fullmatch(rf"{fence}`*\s*", line) else fence
        elif opened := re.match(r"`{3,}", line):
            fence = opened[0]
            found.append(("fence",))
        else:
            bars = words_alone(line).count("|") if line.startswith("| ") else 0
            found.append((*openings(line), *["|"] * bars, *ACTIVE.findall(re.sub(r"!\[[^\]]*\]\([^()\s]*\)", "![](", words_alone(line)))))
    assert not fence
    return found


def words_alone(line: str) -> str:
    """Returns a line without code, escapes, entities and comments."""
    line = re.sub(r"(?<!\\)((?:\\\\)*)`[^`]*`(?!`)", r"\1CODE", re.sub(r"(?<=`)`(?=`?[^`])", "", line))
    return re.sub(r"\\[!-/:-@\[-`{-~]|&(?:lt|amp);|<!-- -->", "\0", line)


def openings(line: str) -> Iterator[str]:
    """Yields the markup at the start of a line."""
    rest = line
    while mark := OPENING.match(rest):
        yield mark[0] if mark[0].strip() else "indented"
        rest = "" if mark[0].startswith("#") else rest[mark.end() :].removeprefix(" ")


def test_renderers_are_short() -> None:
    """Each renderer is short enough to be read at once."""
    lengths = {name: len(SOURCES[name].read_text(encoding="utf-8").splitlines()) for name in RENDERERS}

    assert {} == {name: length for name, length in lengths.items() if length >= 200}


def test_each_text_is_shown() -> None:
    """Each text of a document is in the output of each renderer, except a few that only some of them show."""
    hidden: dict[str, list[int]] = {"terminal": [], "markdown": [], "html": []}
    for place in range(places()):
        for name, written in WHOLE.items():
            if not any("findme" in written(document) for document in with_text(place, "findme")):
                hidden[name].append(place)
    of_titles = [place for place in range(places()) if all("findme" in plain(each.title) for each in with_text(place, "findme"))]
    of_headline = [place for place in range(places()) if all(has_label(each) for each in with_text(place, "findme"))]
    of_points = [place for place in range(places()) if all(in_points(each) for each in with_text(place, "findme"))]

    assert places() > 40
    assert {"terminal": [*of_points, *of_titles], "markdown": [*of_points, *of_headline], "html": of_headline} == hidden
    assert (1, True) == (len(of_headline), len(of_titles) > 1)


#: The complete output of each renderer.
WHOLE: Mapping[str, Callable[[Document], str]] = {
    "terminal": lambda document: "\n".join(on_terminal(document, 2, 80)),
    "markdown": lambda document: "\n".join(in_markdown(document, Level.VERBOSE)),
    "html": in_html,
}


def in_points(document: Document) -> bool:
    """Returns whether the text is about a point or an axis of a chart, which only a page draws."""
    return any(isinstance(each, Chart) and "findme" in repr((each.points, each.unit, each.order)) for each in document.blocks())


def has_label(document: Document) -> bool:
    """Returns whether the text is the label of a headline, which only a terminal shows."""
    return document.headline is not None and document.headline.label == "findme"


@pytest.mark.parametrize("text", ["a", "a " * 40, "日本" * 40, "e\u0301" * 90, "x" * 100])
def test_widths(text: str) -> None:
    """Any text can be shown on a terminal of any width, even if nothing fits."""
    for document in Documents(-1, "").all() + [each for place in range(places()) for each in with_text(place, text)]:
        for width in (1, 10):
            assert on_terminal(document, 0, width)


SOURCES = {name: Path(reports.__file__).with_name(f"{name}.py") for name in ("terminal", "markdown", "html", "comment")}


def sentences(source: str) -> list[str]:
    """Returns the texts of a module with two consecutive words, without docstrings, markup and the values of f-strings."""
    tree = ast.parse(source)
    left_out = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    left_out |= {
        id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values if isinstance(part, ast.Constant)
    }
    texts = [text_of(node) for node in ast.walk(tree) if id(node) not in left_out]
    return [text for text in texts if re.search(r"[A-Za-z]+ [A-Za-z]+", re.sub(r"<[^>]*>", "", text))]


def text_of(node: ast.AST) -> str:
    """Returns the text of a string, or of an f-string without its values."""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or "\0" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


@pytest.mark.parametrize("name", SOURCES)
def test_renderers_contain_no_sentences(name: str) -> None:
    """Texts with two consecutive words belong in `phrases`. A single word may be a label, for example `picture`."""
    assert [] == sentences(SOURCES[name].read_text(encoding="utf-8"))


def test_finding_sentences() -> None:
    """The check finds words in texts and f-strings, also inside their values, but not in markup and docstrings."""
    source = """
def words(count: int) -> str:
    \"\"\"Returns some words.\"\"\"
    title = f'<p class="a b">{count} <b>title</b></p>'
    return f"{count} rollouts ended {'at a limit'}" + "picture"
"""

    assert {"\0 rollouts ended \0", "at a limit"} == set(sentences(source))
