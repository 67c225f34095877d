"""`--agentbench-window` in real sessions: a window with all calls, and one with none."""

from __future__ import annotations

import pytest

from pytest_agentbench.reports import serving_phrases
from pytest_agentbench.reports.document import Level
from tests.findings import facts, report_of, said, tables
from tests.project import Project


def test_a_window_with_everything_in_it(project: Project) -> None:
    """A window that covers the run has all calls and their latencies. It is in run.json, and replaces the steady window in reports."""
    project.suite(scenarios=3)

    project.run("--agentbench-window=:1h", "scenarios/shop")

    performance = project.run_json["performance"]
    window = performance["window"]
    assert (0.0, 3600.0, performance["calls"], 0) == tuple(window[name] for name in ("start_s", "end_s", "calls", "failed_calls"))
    assert window["seconds"] == window["run_s"] > 0
    assert performance["ttft_ms"] == window["latencies"]["ttft_ms"]
    assert [0.0, 3600.0] == project.run_json["settings"]["window"]
    for level, title in ((Level.FULL, "ms"), (Level.VERBOSE, "milliseconds")):
        report = report_of(project.directory, level)
        assert [(0.0, 3600.0, performance["calls"])] == [
            (each.start_s, each.end_s, each.calls) for (each,) in said(report, serving_phrases.chosen_window)
        ]
        assert [] == facts(report, "steady")
        of_all, of_window = tables(report, title)
        assert "TTFT" in [row[0] for row in of_window.rows]
        assert [] == [row for row in of_window.rows if row not in of_all.rows]


@pytest.mark.slow
@pytest.mark.parametrize("level", [Level.FIRST_PAGE, Level.FULL])
def test_a_window_with_nothing_in_it(project: Project, level: Level) -> None:
    """If a window contains no call, the reports say so in one sentence, and the run is otherwise normal."""
    project.suite(scenarios=1)

    result = project.run("--agentbench-window=1h:2h", "scenarios/shop")

    assert 0 == result.ret
    assert 0.0 == project.run_json["performance"]["window"]["seconds"]
    told = said(report_of(project.directory, level), serving_phrases.chosen_window)
    assert {(3600.0, 7200.0, 0.0)} == {(each.start_s, each.end_s, each.seconds) for (each,) in told}
