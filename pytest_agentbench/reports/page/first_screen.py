"""A run in words at the top of its page: what is read first, and below it the whole report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from html import escape

from pytest_agentbench.lib.foreign import one_line
from pytest_agentbench.reports import phrases
from pytest_agentbench.reports.document import AnyBlock, Bullets, Content, Document, Fact, Level, Measure, Note, Section, Table, plain
from pytest_agentbench.reports.html import Address, HtmlLayout, PlacedBlock, blocks_html, no_address, text


def run_html(document: Document, address: Address) -> str:
    """Returns a run in words: what is read first, and below it the whole report, which opens on request."""
    lines = [f'<section class="run" aria-label="{escape(one_line(plain(document.title)))}">', *first_screen(document, address)]
    if document.at(Level.VERBOSE).sections != document.at(Level.SUMMARY).sections:
        lines.append(folded_html(phrases.WHOLE_REPORT, document, address))
    return "\n".join([*lines, "</section>"])


def folded_html(title: str, document: Document, address: Address = no_address) -> str:
    """Returns a whole document under a title, which opens on request."""
    parts = [f'<details class="report"><summary><h2>{title}</h2></summary>', *text(document, 3, address), "</details>"]
    return "\n".join(parts)


def first_screen(document: Document, address: Address = no_address) -> Iterator[str]:
    """Yields the headline and all else that the first page of a terminal says in words, the measures as cards, and then the rest."""
    layout, shown, headline = HtmlLayout(address), document.at(Level.SUMMARY), document.headline
    yield f'<p class="soft">{layout.text(document.title)}</p>'
    if headline:
        yield f'<h1 class="{f"verdict {headline.tone}".rstrip()}">{layout.words(headline.content)}</h1>'
    said = [each.content for each in shown.blocks() if isinstance(each, Fact)]
    placed = [(section, *each) for section in shown.sections for each in _without_tables(section, layout, said)]
    cards = [each for *_, each in placed if _is_measure(each)]
    texts = [(section, part, each) for section, part, each in placed if not _is_measure(each)]
    yield from blocks_html((part, each) for _, part, each in texts if each.level <= Level.FIRST_PAGE)
    if cards:
        yield f'<div class="figures">{"".join(map(_card, cards))}</div>'
    yield '<div class="rest">'
    for section in shown.sections:
        if rest := [(part, each) for of, part, each in texts if of is section and each.level > Level.FIRST_PAGE]:
            yield from (f"<div><h2>{layout.text(section.title)}</h2>", *blocks_html(rest), "</div>")
    yield "</div>"


def _without_tables(section: Section, around: HtmlLayout, said: list[Content]) -> Iterator[PlacedBlock]:
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
