"""The report of the history of suites."""

from __future__ import annotations

from pytest_agentbench.gate.evidence import Evidence
from pytest_agentbench.gate.trend import ExcludedRun, Trend
from pytest_agentbench.reports import comparison_phrases
from pytest_agentbench.reports.document import Chart, Document, Fact, Level, Note, Section, plain
from pytest_agentbench.reports.trend import document
from tests.findings import said, tables
from tests.gate.evidences import HASHES
from tests.gate.test_trend import history, night


def nights(*shares: float) -> list[Evidence]:
    return [night(day, share, run=f"n{day}", commit=f"c{day}") for day, share in enumerate(shares)]


def charts(report: Document) -> dict[str, Chart]:
    return {each.title: each for each in report.blocks() if isinstance(each, Chart)}


def notes(trend: Trend) -> list[object]:
    return [each.content for each in document(trend).blocks() if isinstance(each, Note)]


def test_regressions() -> None:
    """Open regressions come first, then the latest. Each has its runs and commits, and the tone of its state."""
    trend = history(*nights(0.9, 0.3, 0.9, 0.2, 0.2))
    report = document(trend)

    every = {each.run: each for _, _, each in trend.regressions()}
    [table] = tables(report, "state")
    assert ["n3", "n1"] == [each.run for (each,) in said(report, comparison_phrases.regression_state)]
    assert ("bad", "good") == table.tones
    assert ["shop tsq.mean"] * 2 == [row[1] for row in table.rows]
    commits = said(report, comparison_phrases.run_and_commit)
    assert [("n3", "c3"), (every["n3"].reference, every["n3"].reference_commit), ("n1", "c1"), ("n0", "c0"), ("n2", "c2")] == commits
    assert "" == table.rows[0][-1]
    assert [every["n3"], every["n1"]] == [each for _, each in said(report, comparison_phrases.step)]


def test_a_terminal_has_lines_of_regressions() -> None:
    """A terminal has a line for each regression. A page has the table and the charts instead."""
    report = document(history(*nights(0.9, 0.3, 0.9)))
    terminal, page = report.at(Level.FULL), report.at(Level.VERBOSE)

    assert ["good"] == [each.tone for each in terminal.blocks() if isinstance(each, Fact)]
    assert ["n1"] == [each.run for _, _, each in said(terminal, comparison_phrases.regression)]
    assert ([], {}) == (tables(terminal, "state"), charts(terminal))
    assert [] == [each for each in page.blocks() if isinstance(each, Fact)]
    assert charts(page)


def test_nothing_to_compare() -> None:
    """If runs were compared, a note says that there is no regression. A single run, or runs with different scenarios, have another note."""
    several = history(night(0), night(1))
    one = history(night(0))
    apart = history(night(0), night(1, cache="cold", content={**HASHES, "scenario": "another"}))

    assert comparison_phrases.NO_REGRESSION in notes(several)
    for trend in (one, apart):
        assert comparison_phrases.NOTHING_COMPARED in notes(trend)
        assert comparison_phrases.NO_REGRESSION not in notes(trend)
    assert comparison_phrases.NOTHING_COMPARED not in notes(several)
    assert [2, 1] == [len(runs) for trend in (several, one) for (runs,) in said(document(trend), comparison_phrases.period)]


def test_nothing_was_measured() -> None:
    """A suite without evaluable rollouts has a note."""
    trend = history(Evidence(night(0).facts, {"shop": []}))
    [shop] = [each for each in document(trend).sections if plain(each.title) == "shop"]

    assert [comparison_phrases.NOTHING_MEASURED] == [each.content for each in shop.flat() if isinstance(each, Note)]


def test_marks() -> None:
    """Regressions and fixes have a tone. A change of setup is marked at its point, and listed in a folded section."""
    trend = history(*nights(0.9, 0.3, 0.9), night(3, cache="cold"))
    report = document(trend)
    chart = charts(report)["tsq.mean"]

    assert ["", "bad", "good", ""] == [each.tone for each in chart.points]
    assert [False, False, False, True] == [each.begins for each in chart.points]
    assert [("c1", ()), ("c2", ()), ("cache",)] == [each.about.values[1:] for each in chart.points[1:3]] + [chart.points[3].about.values[2]]
    [setups] = [part for each in report.sections for part in each.blocks if isinstance(part, Section)]
    assert setups.folded
    assert [("cache",)] == [each.parts for each, _ in said(report, comparison_phrases.setup_of_run)]
    assert chart.points[-1].value == chart.content.values[0].value


def test_runs_of_one_day() -> None:
    """Points are labelled with the days of their runs, or with times if all are on one day."""
    hours = [night(hour, 0.9, run=f"n{hour}", finished_at=f"2026-03-01T0{hour}:30:00+00:00") for hour in (5, 7)]
    labels = [[each.label for each in charts(document(history(*found)))["tsq.mean"].points] for found in (hours, nights(0.9, 0.9))]

    assert [["2026-03-01 05:30", "2026-03-01 07:30"], ["2026-03-01", "2026-03-02"]] == labels


def test_unreadable_runs() -> None:
    """A left-out run is named with the reason."""
    trend = history(*nights(0.9, 0.9))
    left_out = ExcludedRun("old", "of another version")

    assert [(left_out,)] == said(document(Trend(trend.schema, trend.runs, (left_out,), trend.suites)), comparison_phrases.excluded)
