"""A document as HTML that needs no script: the first screen of a page, and its text from top to bottom."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from html import escape
from itertools import groupby, repeat

from pytest_agentbench.lib.foreign import block, one_line
from pytest_agentbench.reports import phrases
from pytest_agentbench.reports.chart import svg
from pytest_agentbench.reports.document import (
    AnyBlock,
    Bullets,
    Cell,
    Chart,
    Code,
    Column,
    Content,
    Document,
    Fact,
    Figure,
    Finding,
    Level,
    Listing,
    Measure,
    Note,
    Section,
    Table,
    Text,
    Tone,
    plain,
    spans,
    words_of,
)
from pytest_agentbench.reports.numbers import number

#: Blocks that make one element together if they follow each other -> where it begins and ends.
LISTS: Mapping[type, tuple[str, str]] = {Fact: ('<dl class="facts">', "</dl>"), Chart: ('<div class="charts">', "</div>")}


def run_html(document: Document) -> str:
    """Returns a run in words: what is read first, and below it the whole report, which opens on request."""
    whole = [*text(document)]
    report = f'<details class="report"><summary>{phrases.WHOLE_REPORT}</summary>{"".join(whole)}</details>' if whole else ""
    return "\n".join([*first_screen(document), report])


def first_screen(document: Document) -> Iterator[str]:
    """Yields the headline, then the measures as cards, then all else that a summary has. Tables are left out."""
    shown, headline = document.at(Level.SUMMARY), document.headline
    yield f'<section class="run" aria-label="{escape(one_line(plain(document.title)))}">'
    yield f'<p class="soft">{_text(document.title)}</p>'
    if headline:
        yield f'<h1 class="{f"verdict {headline.tone}".rstrip()}">{_words(headline.content)}</h1>'
    cards = [(each.label, each.content) for each in shown.blocks() if isinstance(each, Fact) and isinstance(each.content, Measure)]
    if cards:
        yield f'<div class="figures">{"".join(_card(*each) for each in cards)}</div>'
    yield '<div class="pair">'
    for section in shown.sections:
        if rest := [each for each in section.flat() if not _is_elsewhere(each)]:
            yield f"<div><h2>{_text(section.title)}</h2>"
            yield from _blocks(rest)
            yield "</div>"
    yield "</div>\n</section>"


def _is_elsewhere(each: AnyBlock) -> bool:
    """Cards hold measures, and tables stand below the first screen."""
    return isinstance(each, Table) or (isinstance(each, Fact) and isinstance(each.content, Measure))


def text(document: Document, level: Level = Level.VERBOSE, depth: int = 3) -> Iterator[str]:
    """Yields the sections of a document; their titles are headings of a depth."""
    for section in document.at(level).sections:
        yield from _section(section, depth)


def _section(section: Section, depth: int) -> Iterator[str]:
    title, heading = _text(section.title), f"h{min(depth, 6)}"
    yield f"<details><summary>{title}</summary>" if section.folded else f"<section><{heading}>{title}</{heading}>" if title else "<section>"
    run: list[AnyBlock] = []
    for each in section.blocks:
        if isinstance(each, Section):
            yield from _blocks(run)
            run = []
            yield from _section(each, depth + 1)
        else:
            run.append(each)
    yield from _blocks(run)
    yield "</details>" if section.folded else "</section>"


def _blocks(blocks: Iterable[AnyBlock]) -> Iterator[str]:
    """Facts that follow each other are one list of terms and descriptions, and charts stand in a grid."""
    for kind, group in groupby(blocks, type):
        parts = (line for each in group for line in _block(each))
        if kind in LISTS:
            opened, closed = LISTS[kind]
            yield f"{opened}{''.join(parts)}{closed}"
        else:
            yield from parts


def _fact(each: Fact) -> str:
    term = f"<dt>{escape(one_line(each.label))}</dt>" if each.label else ""
    return f"{term}<dd{_class(each.tone)}>{_words(each.content)}</dd>"


def _block(each: AnyBlock) -> Iterator[str]:
    match each:
        case Fact():
            yield _fact(each)
        case Table():
            tones: Iterable[Tone] = each.tones or repeat("")
            yield '<div class="scroll"><table>'
            yield f"<thead><tr>{''.join(_head(column) for column in each.columns)}</tr></thead>"
            yield f"<tbody>{''.join(map(_row, each.rows, repeat(each.columns), tones))}</tbody></table></div>"
        case Bullets():
            yield f"<ul>{''.join(f'<li>{_words(item)}</li>' for item in each.items)}</ul>"
        case Note():
            yield f'<p class="{each.tone or "soft"}">{_words(each.content)}</p>'
        case Listing():
            yield f"<pre>{escape(block(each.text))}</pre>"
        case Figure():
            yield f'<p><a href="{escape(each.path)}">{escape(one_line(each.title))}</a></p>'
        case Chart():
            caption = f'{escape(one_line(each.title))} <span class="soft">{_words(each.content)}</span>'
            yield from (f'<figure class="chart"><figcaption>{caption}</figcaption>', *svg(each), "</figure>")


def _card(label: str, measure: Measure) -> str:
    """A measure as a card: its number large, its unit beside it, and what else is to be known of it below."""
    unit = ", ".join(filter(None, (phrases.unit_of(measure), measure.statistic)))
    shown = f' <span class="unit">{escape(one_line(unit))}</span>' if unit else ""
    about = escape(one_line("; ".join(filter(None, (phrases.interval(measure), measure.about)))))
    title, value = escape(one_line(label)), escape(phrases.figure(measure))
    return f'<div class="figure"><h2>{title}</h2><p class="value">{value}{shown}</p><p class="soft">{about}</p></div>'


def _head(column: Column) -> str:
    return f'<th scope="col"{_class("number" if column.has_numbers else "")}>{escape(one_line(column.title))}</th>'


def _row(row: tuple[Cell, ...], columns: tuple[Column, ...], tone: Tone) -> str:
    first, *others = zip(row, columns, strict=True)
    cells = "".join(f"<td{_class('number' if column.has_numbers else '')}>{_cell(cell, column)}</td>" for cell, column in others)
    return f'<tr><th scope="row"{_class(tone)}>{_cell(*first)}</th>{cells}</tr>'


def _cell(cell: Cell, column: Column) -> str:
    if cell is None:
        return "-"
    return number(cell, column.digits or 0) if isinstance(cell, int | float) else _text(cell.words if isinstance(cell, Finding) else cell)


def _words(content: Content) -> str:
    found = words_of(content)
    return escape(one_line(phrases.measure(found))) if isinstance(found, Measure) else _text(found)


def _text(found: Text) -> str:
    return "".join(_code(part) if isinstance(part, Code) else escape(one_line(part)) for part in spans(found))


def _code(part: Code) -> str:
    shown = f"<code>{escape(one_line(part.text))}</code>"
    return f'<a href="#{escape(one_line(part.text))}">{shown}</a>' if part.kind == "scenario" else shown


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
