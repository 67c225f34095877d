"""The report of the history of suites: regressions, and a chart of each metric."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_agentbench.gate.trend import FIXED, OPEN, Regression, SuiteTrend, Trend, TrendSeries
from pytest_agentbench.reports import comparison_phrases
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
from pytest_agentbench.reports.document import section as of

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
