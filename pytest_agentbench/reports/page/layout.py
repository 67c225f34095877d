"""The layout of report.html: one style sheet, one script, the report of the run at the top, and links to its rollouts.

The Content-Security-Policy allows only this style and this script, by their hashes, so no data can run as a script.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from importlib.resources import files
from urllib.parse import quote

from pytest_agentbench.lib.foreign import one_line
from pytest_agentbench.metrics import registry
from pytest_agentbench.records import Json, RolloutKey
from pytest_agentbench.reports import phrases
from pytest_agentbench.reports.document import AnyBlock, Bullets, Content, Document, Fact, Level, Measure, Note, Section, Table, plain
from pytest_agentbench.reports.html import Address, HtmlLayout, PlacedBlock, blocks_html, no_address, text
from pytest_agentbench.reports.html_elements import DEFINITIONS, FOCUSED_TOOLTIP, with_tooltips
from pytest_agentbench.reports.page.blocks import encoded
from pytest_agentbench.reports.page.data import RunData

LONGEST = 300  # maximum characters of an address; rollouts with longer names have no links


class RolloutLinks:
    """Maps the names of rollouts in a report to addresses on the page.

    A name is the key or the id of a rollout, or a scenario, which leads to its first trial. If several suites contain the same
    name, only a section about one suite can link to it.
    """

    def __init__(self, keys: Iterable[RolloutKey]) -> None:
        ordered = sorted(keys, key=lambda key: key.trial)
        self._of_group: dict[tuple[str, str], RolloutKey] = {}
        self._of_run: dict[str, RolloutKey | None] = {}  # None if the name is ambiguous
        for name, key in (*((key.id, key) for key in ordered), *((key.scenario, key) for key in ordered)):
            self._of_group.setdefault((key.group, name), key)
            known = self._of_run.setdefault(name, key)
            if known and known.suite != key.suite:
                self._of_run[name] = None
        self._of_run.update({str(key): key for key in ordered})

    def of(self, name: str, titles: Iterable[str] = ()) -> str:
        """Returns the address of a rollout, or an empty string if the name is unknown or ambiguous.

        `titles` are the titles of the sections around the name. The section of a suite has the title `suite` or `suite-variant`, which
        tells rollouts of different suites apart.
        """
        of_groups = [key for title in titles if (key := self._of_group.get((title, name)))]
        key = of_groups[-1] if of_groups else self._of_run.get(name)
        return _address(key) if key else ""


def _address(key: RolloutKey) -> str:
    """Returns the address of a rollout. Empty if that would be too long, or if a name contains a lone surrogate."""
    try:
        address = f"#{quote(f'{key.suite}/{key.id}')}"
    except UnicodeEncodeError:
        return ""
    return address if len(address) <= LONGEST else ""


def run_html(document: Document, address: Address, arms: Table | None = None, heading: str = "h1") -> str:
    """Returns the report of a run: its first screen, and the whole report in an element that the user can open.

    `arms` has a column for each arm of the run, and `heading` is the tag of the verdict.
    """
    label = escape(one_line(plain(document.title)))
    lines = [f'<section class="run" aria-label="{label}">', *first_screen(document, address, arms, heading)]
    if document.at(Level.VERBOSE).sections != document.at(Level.SUMMARY).sections:
        lines.append(folded_html(phrases.WHOLE_REPORT, document, address))
    return "\n".join([*lines, "</section>"])


def folded_html(title: str, document: Document, address: Address = no_address) -> str:
    """Returns a whole document in an element that the user can open."""
    parts = [f'<details class="report"><summary><h2>{title}</h2></summary>', *text(document, 3, address), "</details>"]
    return "\n".join(parts)


def several_html(table: Table, titles: Sequence[str], reports: Iterable[str]) -> str:
    """Returns one table of several runs, and below it the report of each run in an element that the user can open."""
    lines = [f'<section aria-label="{phrases.RUNS_COMPARED}"><h1>{phrases.RUNS_COMPARED}</h1>']
    lines += [*blocks_html([(HtmlLayout(no_address, (phrases.RUNS_COMPARED,)), table)]), "</section>"]
    for title, report in zip(titles, reports, strict=True):
        lines.append(f'<details class="report"><summary><h2>{escape(one_line(title))}</h2></summary>{report}</details>')
    return "\n".join(lines)


def first_screen(document: Document, address: Address = no_address, arms: Table | None = None, heading: str = "h1") -> Iterator[str]:
    """Yields the headline, the texts of the first page, the measures as cards or a table of arms, and then the rest of the summary."""
    layout, shown, headline = HtmlLayout(address), document.at(Level.SUMMARY), document.headline
    yield f'<p class="soft">{layout.text(document.title)}</p>'
    if headline:
        yield f'<{heading} class="{f"verdict {headline.tone}".rstrip()}">{layout.words(headline.content)}</{heading}>'
    shown_elsewhere = [each.content for each in shown.blocks() if isinstance(each, Fact)]
    placed = [(section, *each) for section in shown.sections for each in _without_tables(section, layout, shown_elsewhere)]
    cards = [each for *_, each in placed if _is_measure(each)]
    texts = [(section, part, each) for section, part, each in placed if not _is_measure(each)]
    yield from blocks_html((part, each) for _, part, each in texts if each.level <= Level.FIRST_PAGE)
    if arms:
        yield from blocks_html([(layout._replace(titles=(phrases.ARMS,)), arms)])
    elif cards:
        yield f'<div class="figures">{"".join(map(_card, cards))}</div>'
    yield '<div class="rest">'
    for section in shown.sections:
        if rest := [(part, each) for of, part, each in texts if of is section and each.level > Level.FIRST_PAGE]:
            yield from (f"<div><h2>{layout.text(section.title)}</h2>", *blocks_html(rest), "</div>")
    yield "</div>"


def _without_tables(section: Section, around: HtmlLayout, shown_elsewhere: list[Content]) -> Iterator[PlacedBlock]:
    """Yields the blocks of a section without its tables and their notes, and without list items that are shown elsewhere."""
    layout = around.inside(section)
    before: AnyBlock | Section | None = None
    for each in section.blocks:
        if isinstance(each, Section):
            yield from _without_tables(each, layout, shown_elsewhere)
        elif isinstance(each, Bullets):
            if items := tuple(item for item in each.items if item not in shown_elsewhere):
                yield layout, replace(each, items=items)
        elif not isinstance(each, Table) and not (isinstance(each, Note) and isinstance(before, Table)):
            yield layout, each
        before = each


def _is_measure(each: AnyBlock) -> bool:
    return isinstance(each, Fact) and isinstance(each.content, Measure)


def _card(each: AnyBlock) -> str:
    """Returns a measure as a card: a large number with its unit, and its interval and remark below."""
    assert isinstance(each, Fact) and isinstance(each.content, Measure)
    measure = each.content
    unit = ", ".join(filter(None, (phrases.unit_of(measure), measure.statistic)))
    shown = f' <span class="unit">{escape(one_line(unit))}</span>' if unit else ""
    about = escape(one_line("; ".join(filter(None, (phrases.interval(measure), measure.about)))))
    title, value = with_tooltips(each.label, label=True), escape(phrases.figure(measure))
    return f'<div class="figure"><h2>{title}</h2><p class="value">{value}{shown}</p><p class="soft">{about}</p></div>'


#: The files of the script in their order. While a file is loaded, it may only call functions of earlier files.
SCRIPTS = ("dom", "data", "outcomes", "charts", "timeline", "messages", "calls", "rollout", "table", "speed", "compare", "main")
LIVE = ("live",)  # further files for the page of a running session
#: Parts of the page that the script fills, and their titles.
SECTIONS: Mapping[str, str] = {"rules": "Gate", "scenarios": "Scenarios", "compare": "Comparison", "speed": "Speed"}


def asset(name: str) -> str:
    """Returns the text of a file in the folder `assets`."""
    return (files("pytest_agentbench.reports.page") / "assets" / name).read_text(encoding="utf-8")


def page(title: str, first: str, runs: Sequence[RunData], compared: Sequence[Json], *, live: bool = False) -> str:
    """Returns the HTML of a whole page.

    Args:
        title: The title of the page.
        first: The HTML of the reports, which comes first.
        runs: The data of the runs.
        compared: The intervals of gate rules and comparisons, for a picture.
        live: Whether the page asks its server for updates.
    """
    script = "\n".join(asset(f"{name}.js") for name in (*SCRIPTS[:-1], *(LIVE if live else ()), SCRIPTS[-1]))
    style = asset("page.css") + FOCUSED_TOOLTIP
    terms = {each.name: DEFINITIONS[each.title] for each in registry.METRICS}
    index = {"live": live, "terms": terms, "runs": [{**run.index, "blocks": len(run.blocks)} for run in runs], "compared": compared}
    return "\n".join(_lines(title, policy(script, style, live=live), style, first, _data(index, runs), script)) + "\n"


def policy(script: str, style: str, *, live: bool = False) -> str:
    """Returns the Content-Security-Policy: no other script runs, and only a `live` page may connect, to its own server."""
    rules = [
        "default-src 'none'",
        f"script-src '{_hash(script)}'",
        f"style-src '{_hash(style)}'",
        *(["connect-src 'self'"] if live else []),
    ]
    return "; ".join([*rules, "base-uri 'none'", "form-action 'none'"])


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _lines(title: str, csp: str, style: str, first: str, data: Iterator[str], script: str) -> Iterator[str]:
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{csp}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="referrer" content="no-referrer">'
    yield f"<title>agentbench: {escape(one_line(title))}</title>\n<style>{style}</style>\n</head>\n<body>"
    yield '<a class="skip" href="#scenarios">To the scenarios</a>'
    links = "".join(f'<a href="#{name}">{title}</a>' for name, title in SECTIONS.items())
    yield f'<header><a class="brand" href="#top">agentbench</a><nav aria-label="Parts of the page" hidden>{links}</nav></header>'
    yield '<p id="live" hidden><span role="status"></span> <span></span></p>'
    yield f'<main id="top">\n<div id="first">\n{first}\n</div>'
    for name, heading in SECTIONS.items():
        yield f'<section id="{name}" aria-labelledby="{name}-title" hidden><h2 id="{name}-title">{heading}</h2></section>'
    yield "</main>"
    yield "<noscript><p>Scenarios, transcripts and pictures need JavaScript, which is off. The report above needs none.</p></noscript>"
    yield '<dialog id="rollout" aria-label="One rollout"></dialog>'
    yield from data
    yield f"<script>{script}</script>\n</body>\n</html>"


def _data(index: Json, runs: Sequence[RunData]) -> Iterator[str]:
    yield f'<script type="application/json" id="index">{inert(index)}</script>'
    for run, data in enumerate(runs):
        for number, block in enumerate(data.blocks):
            yield f'<script type="text/plain" id="block-{run}-{number}">{block}</script>'


def inert(value: object) -> str:
    """Encodes JSON for a script element. No text in it can end the element or start a comment."""
    return encoded(value).replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
