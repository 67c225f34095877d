"""A document as HTML that needs no script: what is read first, and the report from top to bottom."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from html import escape
from itertools import groupby
from typing import NamedTuple

from pytest_agentbench.lib.foreign import block, one_line
from pytest_agentbench.reports import phrases
from pytest_agentbench.reports.chart import svg
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
    Measure,
    Note,
    Section,
    Table,
    TableCell,
    Text,
    plain,
    spans,
    words_of,
)
from pytest_agentbench.reports.numbers import number

WIDTH = 300  # characters of what a test, a tool or a model said

Titles = tuple[str, ...]  # of a section, behind those of the sections that it is in

#: (name of a rollout or a scenario, titles of the section in which it stands) -> what a link to it leads to; empty if there is none.
Address = Callable[[str, Titles], str]


def no_address(_name: str, _titles: Titles) -> str:
    """Returns that a name leads nowhere: the address of all rollouts where a page has none."""
    return ""


def run_html(document: Document, address: Address) -> str:
    """Returns a run in words: what is read first, and below it the whole report, which opens on request."""
    lines = [f'<section class="run" aria-label="{escape(one_line(plain(document.title)))}">', *first_screen(document, address)]
    if document.at(Level.VERBOSE).sections != document.at(Level.SUMMARY).sections:
        lines.append(f'<details class="report"><summary><h2>{phrases.WHOLE_REPORT}</h2></summary>')
        lines += [*text(document, 3, address), "</details>"]
    return "\n".join([*lines, "</section>"])


def text(document: Document, depth: int, address: Address = no_address) -> Iterator[str]:
    """Yields the sections of a document; their titles are headings of a depth."""
    for section in document.at(Level.VERBOSE).sections:
        yield from _section(section, _HtmlLayout(address), depth)


def first_screen(document: Document, address: Address = no_address) -> Iterator[str]:
    """Yields the headline and all else that the first page of a terminal says in words, the measures as cards, and then the rest."""
    layout, shown, headline = _HtmlLayout(address), document.at(Level.SUMMARY), document.headline
    yield f'<p class="soft">{layout.text(document.title)}</p>'
    if headline:
        yield f'<h1 class="{f"verdict {headline.tone}".rstrip()}">{layout.words(headline.content)}</h1>'
    said = [each.content for each in shown.blocks() if isinstance(each, Fact)]
    placed = [(section, *each) for section in shown.sections for each in _without_tables(section, layout, said)]
    cards = [each for *_, each in placed if _is_measure(each)]
    texts = [(section, part, each) for section, part, each in placed if not _is_measure(each)]
    yield from _blocks((part, each) for _, part, each in texts if each.level <= Level.FIRST_PAGE)
    if cards:
        yield f'<div class="figures">{"".join(map(_card, cards))}</div>'
    yield '<div class="rest">'
    for section in shown.sections:
        if rest := [(part, each) for of, part, each in texts if of is section and each.level > Level.FIRST_PAGE]:
            yield from (f"<div><h2>{layout.text(section.title)}</h2>", *_blocks(rest), "</div>")
    yield "</div>"


def _without_tables(section: Section, around: _HtmlLayout, said: list[Content]) -> Iterator[_Placed]:
    """Yields the blocks of a section, but for tables with the notes that belong to them, and of a list what is not said elsewhere."""
    layout = around.inside(section)
    before: AnyBlock | Section | None = None
    for each in section.blocks:
        if isinstance(each, Section):
            yield from _without_tables(each, layout, said)
        elif isinstance(each, Bullets):
            if items := tuple(item for item in each.items if item not in said):
                yield layout, replace(each, items=items)
        elif not isinstance(each, Table) and not (isinstance(each, Note) and isinstance(before, Table)):
            yield layout, each
        before = each


def _is_measure(each: AnyBlock) -> bool:
    return isinstance(each, Fact) and isinstance(each.content, Measure)


def _card(each: AnyBlock) -> str:
    """A measure as a card: its number large, its unit beside it, and what else is to be known of it below."""
    assert isinstance(each, Fact) and isinstance(each.content, Measure)
    measure = each.content
    unit = ", ".join(filter(None, (phrases.unit_of(measure), measure.statistic)))
    shown = f' <span class="unit">{escape(one_line(unit))}</span>' if unit else ""
    about = escape(one_line("; ".join(filter(None, (phrases.interval(measure), measure.about)))))
    title, value = escape(one_line(each.label)), escape(phrases.figure(measure))
    return f'<div class="figure"><h2>{title}</h2><p class="value">{value}{shown}</p><p class="soft">{about}</p></div>'


def _section(section: Section, around: _HtmlLayout, depth: int) -> Iterator[str]:
    """Yields a section; its title is a heading of a depth, and the name of the tables in it."""
    layout, heading = around.inside(section), f"h{min(depth, 6)}"
    title = f"<{heading}>{layout.text(section.title)}</{heading}>" if plain(section.title) else ""
    yield f"<details><summary>{title}</summary>" if section.folded else f"<section>{title}"
    run: list[_Placed] = []
    for each in section.blocks:
        if isinstance(each, Section):
            yield from _blocks(run)
            run = []
            yield from _section(each, layout, depth + 1)
        else:
            run.append((layout, each))
    yield from _blocks(run)
    yield "</details>" if section.folded else "</section>"


#: Blocks that make one element together if they follow each other -> where it begins and ends.
LISTS: Mapping[type, tuple[str, str]] = {Fact: ('<dl class="facts">', "</dl>"), Chart: ('<div class="charts">', "</div>")}


def _blocks(placed: Iterable[_Placed]) -> Iterator[str]:
    """Yields blocks; facts that follow each other are one list of terms and descriptions, and charts stand in a grid."""
    for kind, run in groupby(placed, key=lambda each: type(each[1])):
        parts = [layout.block(each) for layout, each in run]
        opened, closed = LISTS.get(kind, ("", ""))
        yield from [f"{opened}{''.join(parts)}{closed}"] if opened else parts


class _HtmlLayout(NamedTuple):
    """How the blocks of a section become HTML."""

    address: Address
    titles: Titles = ()

    def inside(self, section: Section) -> _HtmlLayout:
        """Returns the layout of a section in this one."""
        return self._replace(titles=(*self.titles, one_line(plain(section.title))))

    def block(self, each: AnyBlock) -> str:
        match each:
            case Fact():
                term = f"<dt>{escape(one_line(each.label))}</dt>" if each.label else ""
                shown = f"{term}<dd{_class(each.tone)}>{self.words(each.content)}</dd>"
            case Table():
                head = "".join(f'<th scope="col"{_class_of(column)}>{escape(one_line(column.title))}</th>' for column in each.columns)
                tones = each.tones or [""] * len(each.rows)
                rows = "".join(self._row(row, each.columns, tone) for row, tone in zip(each.rows, tones, strict=True))
                table = f'<table aria-label="{escape(self.titles[-1])}"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
                shown = f'<div class="scroll">{table}</div>'
            case Bullets():
                shown = f"<ul>{''.join(f'<li>{self.words(item)}</li>' for item in each.items)}</ul>"
            case Note():
                shown = f'<p class="{each.tone or "soft"}">{self.words(each.content)}</p>'
            case Listing():
                shown = f"<pre>{escape(block(each.text))}</pre>"
            case Figure():
                shown = f"<p>{escape(one_line(each.title))}: <code>{escape(one_line(each.path))}</code></p>"  # the page may lie elsewhere
            case Chart():
                caption = f'{escape(one_line(each.title))} <span class="soft">{self.words(each.content)}</span>'
                shown = f'<figure class="chart"><figcaption>{caption}</figcaption>{"".join(svg(each))}</figure>'
        return shown

    def words(self, content: Content) -> str:
        found = words_of(content)
        return escape(one_line(phrases.measure(found))) if isinstance(found, Measure) else self.text(found)

    def text(self, found: Text) -> str:
        return "".join(self._code(part) if isinstance(part, Code) else escape(one_line(part)) for part in spans(found))

    def _row(self, row: tuple[TableCell, ...], columns: tuple[Column, ...], tone: str) -> str:
        first, *others = zip(row, columns, strict=True)
        cells = "".join(f"<td{_class_of(column)}>{self._cell(cell, column)}</td>" for cell, column in others)
        return f'<tr><th scope="row"{_class_of(columns[0], tone)}>{self._cell(*first)}</th>{cells}</tr>'

    def _cell(self, cell: TableCell, column: Column) -> str:
        if cell is None:
            return "-"
        return number(cell, column.digits or 0) if isinstance(cell, int | float) else self.words(cell)

    def _code(self, part: Code) -> str:
        text = " ".join(part.text.split())
        is_cut = part.kind != "command" and len(text) > WIDTH
        shown = f"<code>{escape(one_line(f'{text[:WIDTH]}...' if is_cut else text))}</code>"
        address = self.address(part.text, self.titles) if part.kind == "scenario" else ""
        return f'<a href="{escape(address)}">{shown}</a>' if address else shown


_Placed = tuple[_HtmlLayout, AnyBlock]


def _class_of(column: Column, tone: str = "") -> str:
    return _class(f"{'number' if column.has_numbers else ''} {tone}".strip())


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
