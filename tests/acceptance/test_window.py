"""`--agentbench-window`: a real session says what was measured in it, and that nothing was."""

from __future__ import annotations

import pytest

from tests.project import Project


def test_a_window_with_everything_in_it(project: Project) -> None:
    """It has all calls and their latencies, and stands in run.json, in report.md and with -v in place of the steady window."""
    project.suite(scenarios=3)

    result = project.run("--agentbench-window=:1h", "-v", "scenarios/shop")

    performance = project.run_json["performance"]
    window = performance["window"]
    assert (0.0, 3600.0, performance["calls"], 0) == tuple(window[name] for name in ("start_s", "end_s", "calls", "failed_calls"))
    assert window["seconds"] == window["run_s"] > 0
    assert performance["ttft_ms"] == window["latencies"]["ttft_ms"]
    assert [0.0, 3600.0] == project.run_json["settings"]["window"]
    result.stdout.fnmatch_lines(
        ["window * LLM calls in the * from 0 s to 3600 s after the first call", "of the calls that were sent in the window"]
    )
    result.stdout.no_fnmatch_line("steady *")
    report = (project.directory / "report.md").read_text()
    assert "\nWindow: " in report
    assert "### The window: calls that were sent in it" in report


@pytest.mark.slow
@pytest.mark.parametrize("verbosity", ["-v", "--verbosity=0"])
def test_a_window_with_nothing_in_it(project: Project, verbosity: str) -> None:
    """Is said in one sentence; the run is as good as any other."""
    project.suite(scenarios=1)

    result = project.run("--agentbench-window=1h:2h", verbosity, "scenarios/shop")

    assert 0 == result.ret
    told = " ".join(result.stdout.str().split())
    assert "nothing was measured from 3600 s to 7200 s after the first call: the run was over " in told
    assert 0.0 == project.run_json["performance"]["window"]["seconds"]
