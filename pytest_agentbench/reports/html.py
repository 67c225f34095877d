"""Renders a document as HTML without scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from html import escape
from itertools import groupby
from typing import NamedTuple

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
    plain,
    spans,
)
from pytest_agentbench.reports.html_elements import svg, with_tooltips

LINKED = ("scenario", "run", "commit")  # kinds of names that can have an address

Titles = tuple[str, ...]  # the titles of a section and those around it, the outermost first

#: (name of a rollout or scenario, titles of the section that contains it) -> address of a link to it, or an empty string.
Address = Callable[[str, Titles], str]


def no_address(_name: str, _titles: Titles) -> str:
    """Returns an empty address for every name, so that a page without rollouts has no links to them."""
    return ""


def text(document: Document, depth: int, address: Address = no_address) -> Iterator[str]:
    """Yields the sections of a document as HTML. `depth` is the level of their headings: 2 for h2."""
    for section in document.at(Level.VERBOSE).sections:
        yield from _section(section, HtmlLayout(address), depth)


def _section(section: Section, around: HtmlLayout, depth: int) -> Iterator[str]:
    """Yields a section as HTML. Its title is a heading of level `depth`, and the label of its tables."""
    layout, heading = around.inside(section), f"h{min(depth, 6)}"
    title = f"<{heading}>{layout.text(section.title)}</{heading}>" if plain(section.title) else ""
    yield f"<details><summary>{title}</summary>" if section.folded else f"<section>{title}"
    run: list[PlacedBlock] = []
    for each in section.blocks:
        if isinstance(each, Section):
            yield from blocks_html(run)
            run = []
            yield from _section(each, layout, depth + 1)
        else:
            run.append((layout, each))
    yield from blocks_html(run)
    yield "</details>" if section.folded else "</section>"


#: Type of block -> start and end tag of the element that contains consecutive blocks of this type.
LISTS: Mapping[type, tuple[str, str]] = {Fact: ('<dl class="facts">', "</dl>"), Chart: ('<div class="charts">', "</div>")}


def blocks_html(placed: Iterable[PlacedBlock]) -> Iterator[str]:
    """Yields blocks as HTML. Consecutive facts become one description list, and consecutive charts a grid."""
    for kind, run in groupby(placed, key=lambda each: type(each[1])):
        parts = [layout.block(each) for layout, each in run]
        opened, closed = LISTS.get(kind, ("", ""))
        yield from [f"{opened}{''.join(parts)}{closed}"] if opened else parts


class HtmlLayout(NamedTuple):
    """Turns the blocks of one section into HTML. `address` links the names of scenarios."""

    address: Address
    titles: Titles = ()

    def inside(self, section: Section) -> HtmlLayout:
        """Returns the layout of a nested section."""
        return self._replace(titles=(*self.titles, one_line(plain(section.title))))

    def block(self, each: AnyBlock) -> str:
        match each:
            case Fact():
                term = f"<dt>{with_tooltips(each.label, label=True)}</dt>" if each.label else ""
                shown = f"{term}<dd{_class(each.tone)}>{self.words(each.content)}</dd>"
            case Table():
                head = "".join(
                    f'<th scope="col"{_class_of(column)}>{with_tooltips(column.title, label=True)}</th>' for column in each.columns
                )
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
                # No image, because the page may be moved away from the file.
                shown = f"<p>{escape(one_line(each.title))}: <code>{escape(one_line(each.path))}</code></p>"
            case Chart():
                caption = f'{with_tooltips(each.title, label=True)} <span class="soft">{self.words(each.content)}</span>'
                picture = "".join(svg(each, lambda run: self.address(run, self.titles)))
                shown = f'<figure class="chart"><figcaption>{caption}</figcaption>{picture}</figure>'
        return shown

    def words(self, content: Content) -> str:
        """Returns a text, a finding or a measure as HTML."""
        return self.text(phrases.words(content))

    def text(self, text: Text) -> str:
        return "".join(self._code(part) if isinstance(part, Code) else with_tooltips(part) for part in spans(text))

    def _row(self, row: tuple[TableCell, ...], columns: tuple[Column, ...], tone: str) -> str:
        first, *others = zip(row, columns, strict=True)
        cells = "".join(f"<td{_class_of(column)}>{self.text(phrases.cell(cell, column))}</td>" for cell, column in others)
        name = phrases.cell(*first)
        title = with_tooltips(name, label=True) if isinstance(name, str) else self.text(name)
        return f'<tr><th scope="row"{_class_of(columns[0], tone)}>{title}</th>{cells}</tr>'

    def _code(self, part: Code) -> str:
        shown = f"<code>{escape(one_line(part.shown))}</code>"
        address = self.address(part.text, self.titles) if part.kind in LINKED else ""
        return f'<a href="{escape(address)}">{shown}</a>' if address else shown


PlacedBlock = tuple[HtmlLayout, AnyBlock]


def _class_of(column: Column, tone: str = "") -> str:
    return _class(f"{'number' if column.has_numbers else ''} {tone}".strip())


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
