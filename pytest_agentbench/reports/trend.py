"""A suite's history as one page that needs nothing else: no script, no file from elsewhere, all names of others escaped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from pathlib import Path

from pytest_agentbench.gate.trend import FIXED, OPEN, Point, Regression, SuiteTrend, Trend, TrendSeries
from pytest_agentbench.lib.codec import plain
from pytest_agentbench.lib.foreign import one_line
from pytest_agentbench.lib.whole_file import write_whole
from pytest_agentbench.reports.chart import svg

PAGE, DATA = "trend.html", "trend.json"
SHORT = 10  # letters of a commit

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
h1 { font-size: 22px; } h2 { font-size: 18px; margin-top: 32px; } h3 { font-size: 15px; margin: 0 0 4px; }
p, li, td, th { overflow-wrap: anywhere; } .soft { color: var(--soft); }
.charts { display: grid; gap: 12px; grid-template-columns: repeat(auto-fill, minmax(min(100%, 360px), 1fr)); }
.chart { background: var(--card); border: 1px solid var(--edge); border-radius: 6px; padding: 12px;
  min-width: 0; }
svg { display: block; width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif;
  fill: var(--soft); }
.grid { stroke: var(--edge); stroke-width: 1; } .setup { stroke: var(--soft); stroke-width: 1;
  stroke-dasharray: 4 3; }
.interval { stroke: var(--line); stroke-width: 3; opacity: .3; } .line { fill: none; stroke: var(--line);
  stroke-width: 1.5; }
.point { fill: var(--line); } .fell { fill: var(--bad); } .rose { fill: var(--card); stroke: var(--good); stroke-width: 3; }
.open { color: var(--bad); font-weight: 600; } .fixed { color: var(--good); font-weight: 600; }
.table { overflow-x: auto; } table { border-collapse: collapse; width: 100%; } th, td { text-align: left;
  padding: 4px 10px 4px 0; vertical-align: top; }
th { color: var(--soft); font-weight: 500; } td { border-top: 1px solid var(--edge);
  } code { font: 13px ui-monospace, monospace; }
"""


def write(trend: Trend, directory: Path) -> list[Path]:
    """Writes the page and its numbers; raises OSError."""
    data = json.dumps(plain(trend), indent=1, ensure_ascii=False) + "\n"
    page = "\n".join(html(trend)) + "\n"
    return [write_whole(directory / name, text, errors="backslashreplace") for name, text in ((PAGE, page), (DATA, data))]


def html(trend: Trend) -> Iterator[str]:
    """The lines of the page."""
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    yield f"<title>agentbench: {_text(', '.join(trend.suites))}</title>\n<style>{STYLE}</style>\n</head>\n<body>"
    first, last = trend.runs[0], trend.runs[-1]
    yield f"<h1>{_text(', '.join(trend.suites))}</h1>"
    when = f"{len(trend.runs)} runs, {first.finished_at} to {last.finished_at}" if trend.runs[1:] else f"One run, {first.finished_at}"
    yield f'<p class="soft">{_text(when)}</p>'
    yield from _regressions(trend)
    for group, suite in trend.suites.items():
        yield f"<h2>{_text(group)}</h2>"
        yield from _setups(trend, suite)
        if not suite.series:
            yield "<p>Nothing was measured: no run has a rollout that counts.</p>"
            continue
        yield '<div class="charts">'
        for series in suite.series:
            yield from _chart(trend, suite, series)
        yield "</div>"
    if trend.left_out:
        yield "<h2>Left out</h2><ul>"
        yield from (f"<li><code>{_text(each.source)}</code>: {_text(each.why)}</li>" for each in trend.left_out)
        yield "</ul>"
    yield '<p class="soft">Bars are 95 % intervals of each run alone;'
    yield "dashed lines are other setups; a red dot is a step down, a green ring one that fixed it.</p>"
    yield "</body>\n</html>"


def _regressions(trend: Trend) -> Iterator[str]:
    """A table, those that are open first, then the latest first."""
    places = {each.run: place for place, each in enumerate(trend.runs)}
    every = sorted(trend.regressions(), key=lambda each: (each[2].state != OPEN, -places[each[2].run]))
    yield "<h2>Regressions</h2>"
    if not every:
        compared = sum(series.compared for suite in trend.suites.values() for series in suite.series)
        yield (
            "<p>None.</p>"
            if compared
            else "<p>Nothing can be compared: no two runs have scenarios of equal content that were measured.</p>"
        )
        return
    heads = ("state", "metric", "first worse run", "better before", "change", "fixed by")
    yield f'<div class="table"><table><tr>{"".join(f"<th>{head}</th>" for head in heads)}</tr>'
    for group, series, each in every:
        cells = (
            f'<span class="{each.state}">{each.kind}, {each.state}</span>',
            _text(f"{group} {series.metric}"),
            _run(each.run, each.commit),
            _run(each.reference, each.reference_commit),
            _text(change_text(series, each)),
            _run(each.fixed_by, each.fixed_commit) if each.fixed_by else "",
        )
        yield f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
    yield "</table></div>"


def change_text(series: TrendSeries, each: Regression) -> str:
    """`-0.120 [-0.180, -0.060]`, or of latencies `x1.32 [1.20, 1.45]`."""
    if series.unit:
        return f"x{each.estimate:.2f} [{each.low:.2f}, {each.high:.2f}]"
    return f"{each.estimate:+.3f} [{each.low:+.3f}, {each.high:+.3f}]"


def _run(run: str, commit: str | None) -> str:
    return f"{_text(run)}<br><code>{_text(commit[:SHORT] if commit else 'no commit')}</code>"


def _setups(trend: Trend, suite: SuiteTrend) -> Iterator[str]:
    if suite.setups:
        commits = {each.run: each.commit for each in trend.runs}
        yield '<details><summary class="soft">Setups that changed</summary><ul>'
        for each in suite.setups:
            commit = commits[each.run]
            yield f"<li>{_text(each.run)} {_text(commit[:SHORT] if commit else '')}: {_text(', '.join(each.parts))}</li>"
        yield "</ul></details>"


def _chart(trend: Trend, suite: SuiteTrend, series: TrendSeries) -> Iterator[str]:
    runs = {each.run: each for each in trend.runs}
    marks = {each.fixed_by: "rose" for each in series.regressions if each.state == FIXED and each.fixed_by}
    marks |= {each.run: "fell" for each in series.regressions}
    setups = {each.run: each.parts for each in suite.setups}
    last = series.points[-1]
    yield f'<div class="chart"><h3>{_text(series.metric)}{f", {series.unit}" if series.unit else ""}'
    yield f'<span class="soft"> {_text(_value_text(last))} at last</span></h3>'
    moments = [runs[point.run].finished_at for point in series.points]
    several = len({moment[:10] for moment in moments}) > 1
    labels = [moment[:10] if several else moment[:16].replace("T", " ") for moment in moments]
    notes = [
        f"{point.run}, {(runs[point.run].commit or 'no commit')[:SHORT]}: {_value_text(point)}"
        + (f"; other {', '.join(setups[point.run])}" if point.run in setups else "")
        for point in series.points
    ]
    yield from svg(f"{series.metric} over {len(series.points)} runs", series.points, labels, notes, marks, {*setups})
    yield "</div>"


def _value_text(point: Point) -> str:
    interval = "" if point.low is None or point.high is None else f" [{point.low:.4g}, {point.high:.4g}]"
    return f"{point.value:.4g}{interval}"


def _text(text: str) -> str:
    return escape(one_line(text))
