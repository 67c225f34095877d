"""The report of the history of suites, written as trend.html and trend.json: regressions, and a chart of each metric.

The page contains no script, loads no file, and escapes all texts.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from types import MappingProxyType
from urllib.parse import quote

from pytest_agentbench.gate.trend import FIXED, OPEN, Regression, SuiteTrend, Trend, TrendSeries
from pytest_agentbench.lib.codec import plain
from pytest_agentbench.lib.file_system import write_whole
from pytest_agentbench.lib.foreign import one_line
from pytest_agentbench.reports import comparison_phrases
from pytest_agentbench.reports.comparison_phrases import commit_of
from pytest_agentbench.reports.document import (
    AnyBlock,
    Bullets,
    Chart,
    ChartPoint,
    Code,
    Document,
    Fact,
    Level,
    Note,
    Section,
    Table,
    TableCell,
    Tone,
    heads,
    say,
)
from pytest_agentbench.reports.document import plain as words
from pytest_agentbench.reports.document import section as of
from pytest_agentbench.reports.html import text
from pytest_agentbench.reports.html_elements import FOCUSED_TOOLTIP

#: State of a regression -> its tone.
TONES: dict[str, Tone] = {OPEN: "bad", FIXED: "good"}


def document(trend: Trend) -> Document:
    """Returns the history of all suites."""
    period = Section("", (Note(say(comparison_phrases.period, trend.runs)),))
    suites = (of(group, _suite(trend, suite)) for group, suite in trend.suites.items())
    left_out = of("Left out", [Bullets(tuple(say(comparison_phrases.excluded, each) for each in trend.left_out))])
    reading = Section("", (Note(comparison_phrases.CHARTS, level=Level.VERBOSE),))
    parts = (period, of("Regressions", _regressions(trend)), *suites, of("Runs", [_runs(trend)]), left_out, reading)
    return Document.of(", ".join(trend.suites), parts)


def _runs(trend: Trend) -> Table:
    """Returns a table of all runs, the last one first, with links to their pages and commits."""
    rows = tuple((Code(each.run, "run"), each.finished_at, comparison_phrases.commit_code(each.commit)) for each in reversed(trend.runs))
    return Table(heads("run", "finished", "commit"), rows, level=Level.VERBOSE)


def _regressions(trend: Trend) -> Iterator[AnyBlock]:
    """Yields the regressions as lines for a terminal and a table for files: open ones first, and later ones before earlier ones."""
    places = {each.run: place for place, each in enumerate(trend.runs)}
    every = sorted(trend.regressions(), key=lambda each: (each[2].state != OPEN, -places[each[2].run]))
    for group, series, each in every:
        state = comparison_phrases.regression_state(each)
        yield Fact(state, say(comparison_phrases.regression, group, series, each), _tone(each), until=Level.FULL)
    columns = heads("state", "metric", "first worse run", "better before", "change", "fixed by")
    rows, tones = tuple(_row(*each) for each in every), tuple(_tone(each) for _, _, each in every)
    yield Table(columns, rows, tones=tones, level=Level.VERBOSE)
    if not every:
        compared = any(series.compared for suite in trend.suites.values() for series in suite.series)
        yield Note(comparison_phrases.NO_REGRESSION if compared else comparison_phrases.NOTHING_COMPARED)


def _tone(each: Regression) -> Tone:
    return TONES.get(each.state, "open")


def _row(group: str, series: TrendSeries, each: Regression) -> tuple[TableCell, ...]:
    return (
        say(comparison_phrases.regression_state, each),
        f"{group} {series.metric}",
        say(comparison_phrases.run_and_commit, each.run, each.commit),
        say(comparison_phrases.run_and_commit, each.reference, each.reference_commit),
        say(comparison_phrases.step, series, each),
        say(comparison_phrases.run_and_commit, each.fixed_by, each.fixed_commit) if each.fixed_by else "",
    )


def _suite(trend: Trend, suite: SuiteTrend) -> Iterator[AnyBlock | Section | None]:
    commits = {each.run: each.commit for each in trend.runs}
    changes = tuple(say(comparison_phrases.setup_of_run, each, commits[each.run]) for each in suite.setups)
    if changes:
        yield Section("Setups that changed", (Bullets(changes, level=Level.VERBOSE),), folded=True)
    yield from (_chart(trend, suite, series) for series in suite.series)
    if not suite.series:
        yield Note(comparison_phrases.NOTHING_MEASURED)


def _chart(trend: Trend, suite: SuiteTrend, series: TrendSeries) -> Chart:
    runs = {each.run: each for each in trend.runs}
    tones: dict[str, Tone] = {each.fixed_by: "good" for each in series.regressions if each.state == FIXED and each.fixed_by}
    tones |= {each.run: "bad" for each in series.regressions}
    changed = {each.run: each.parts for each in suite.setups}
    is_one_day = len({runs[point.run].finished_at[:10] for point in series.points}) == 1
    points = tuple(
        ChartPoint(
            *(point.value, point.low, point.high),
            label=runs[point.run].finished_at[: 16 if is_one_day else 10].replace("T", " "),
            about=say(comparison_phrases.point, point, runs[point.run].commit, changed.get(point.run, ())),
            tone=tones.get(point.run, ""),
            begins=point.run in changed,
            run=point.run,
        )
        for point in series.points
    )
    title = f"{series.metric}, {series.unit}" if series.unit else series.metric
    unit, order = series.unit or comparison_phrases.MEAN_SCORE, comparison_phrases.IN_TIME_ORDER
    return Chart(title, say(comparison_phrases.last_value, series.points[-1]), points, unit, order, level=Level.VERBOSE)


PAGE, DATA = "trend.html", "trend.json"
RUN_PAGE = "report.html"  # page of a run in its directory

STYLE = """
:root { --ink: #1c2128; --soft: #59636e; --paper: #ffffff; --card: #f6f8fa; --edge: #d1d9e0; --line: #0969da;
  --bad: #cf222e; --good: #1a7f37;
  color-scheme: light dark; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #9198a1; --paper: #0d1117; --card: #151b23; --edge: #3d444d;
  --line: #4493f8; --bad: #f85149; --good: #3fb950; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 16px; max-width: 1200px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 22px; } h2 { font-size: 18px; margin-top: 32px; } summary { color: var(--soft); }
p, li, td, th { overflow-wrap: anywhere; } .soft { color: var(--soft); font-weight: 400; }
.charts { display: grid; gap: 12px; grid-template-columns: repeat(auto-fill, minmax(min(100%, 360px), 1fr)); }
.chart { background: var(--card); border: 1px solid var(--edge); border-radius: 6px; padding: 12px; margin: 0;
  min-width: 0; }
figcaption { font-weight: 600; margin-bottom: 4px; }
svg { display: block; width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif;
  fill: var(--soft); }
.grid { stroke: var(--edge); stroke-width: 1; } .begins { stroke: var(--soft); stroke-width: 1;
  stroke-dasharray: 4 3; }
.interval { stroke: var(--line); stroke-width: 3; opacity: .3; } .line { fill: none; stroke: var(--line);
  stroke-width: 1.5; }
summary h2, summary h3 { display: inline; } abbr[title] { text-decoration: underline dotted; cursor: help; }
a { color: var(--line); } :focus-visible { outline: 2px solid var(--line); outline-offset: 2px; }
svg a:focus-visible circle { stroke: var(--ink); stroke-width: 3; }
@media print { .chart, tr { break-inside: avoid; } details:not([open]) { display: none; } }
circle { fill: var(--line); } circle.bad { fill: var(--bad); } circle.good { fill: var(--card); stroke: var(--good); stroke-width: 3; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; } th, td { text-align: left;
  padding: 4px 10px 4px 0; vertical-align: top; }
thead th { color: var(--soft); font-weight: 500; } tbody th { font-weight: 400; } tbody th, td { border-top: 1px solid var(--edge); }
tbody th.bad { color: var(--bad); font-weight: 600; } tbody th.good { color: var(--good); font-weight: 600; }
code { font: 13px ui-monospace, monospace; }
"""


def write(trend: Trend, directory: Path, runs: Path | None = None, repository: str = "") -> list[Path]:
    """Writes trend.html and trend.json, and returns their paths. Raises OSError.

    Args:
        trend: The history.
        directory: Where to write it.
        runs: The directory of the runs, whose pages are linked. None for no such links.
        repository: The address of the repository on the web, whose commits are linked. Empty for no such links.
    """
    data = json.dumps(plain(trend), indent=1, ensure_ascii=False) + "\n"
    links = {**(links_to_runs(trend, runs, directory) if runs else {}), **links_to_commits(trend, repository)}
    page = "\n".join(html(trend, links)) + "\n"
    return [write_whole(directory / name, text, errors="backslashreplace") for name, text in ((PAGE, page), (DATA, data))]


def links_to_runs(trend: Trend, runs: Path, directory: Path) -> dict[str, str]:
    """Returns run -> address of its page, relative to `directory`. Baselines, and runs without a page, have none."""
    pages = {each.run: runs / each.source / RUN_PAGE for each in trend.runs}
    return {run: quote(Path(os.path.relpath(page, directory)).as_posix()) for run, page in pages.items() if page.is_file()}


def links_to_commits(trend: Trend, repository: str) -> dict[str, str]:
    """Returns the short form of a commit -> its address in a repository on the web."""
    commits = {each.commit for each in trend.runs if each.commit} if repository else set()
    return {commit_of(commit): f"{repository}/commit/{quote(commit)}" for commit in commits}


def web_address(remote: str) -> str:
    """Returns the web address of a git remote on a server: `https://host/owner/name`. Empty for any other remote."""
    found = re.fullmatch(r"(?:https://(?:[^/@]+@)?|ssh://git@|git@)([\w.-]+)[/:]([\w./-]+?)(?:\.git)?/?", remote.strip())
    return f"https://{found[1]}/{found[2]}" if found else ""


def html(trend: Trend, links: Mapping[str, str] = MappingProxyType({})) -> Iterator[str]:
    """Yields the lines of trend.html. `links` has the addresses of runs and commits."""
    report = document(trend)
    title = escape(one_line(words(report.title)))
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    yield f"<title>agentbench: {title}</title>\n<style>{STYLE}{FOCUSED_TOOLTIP}</style>\n</head>\n<body>"
    yield f"<h1>{title}</h1>"
    yield from text(report, 2, lambda name, _titles: links.get(name, ""))
    yield "</body>\n</html>"
