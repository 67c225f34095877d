"""A metric has one home: whoever adds one adds it there, and finds it everywhere."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_agentbench.metrics import registry
from tests.project import Project

MADE_UP = """
from pytest_agentbench.metrics import registry


def last_word_ns(call):
    return call.ended_ns - call.output[-1].at_ns if call.output and not call.error_kind else None


registry.METRICS += (registry.Metric("last_word", "last word", "call", "from the last event to the end", of_call=last_word_ns),)
"""


def test_a_made_up_metric_is_everywhere(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """One entry, and it stands in run.json, report.md, on the terminal, in OpenMetrics, JUnit, a gate's rule, an objective, a diff."""
    monkeypatch.setenv("GITLAB_CI", "true")
    project.write("made_up.py", MADE_UP)
    project.suite(scenarios=3)

    result = project.run(
        *("-p", "made_up", "-v", "--junitxml=junit.xml", "--agentbench-slo=last_word=10s"),
        *("--agentbench-gate=last_word.p50 <= 10s", "scenarios/shop"),
    )

    assert project.run_json["performance"]["last_word_ms"]["n"] >= 3
    assert {"last_word": 10_000} == project.run_json["performance"]["goodput"]["slo_ms"]
    assert "last_word.p50 <= 10s" in [rule["rule"] for rule in project.run_json["gate"]["rules"]]
    assert "| last word |" in (project.directory / "report.md").read_text()
    result.stdout.fnmatch_lines(["last word  *"])
    assert 'agentbench_last_word_seconds{statistic="mean"}' in (project.directory / "metrics.txt").read_text()
    assert "last_word_ms_p50" in (project.root / "junit.xml").read_text()
    diff = "import sys, made_up; from pytest_agentbench.cli import main; sys.exit(main(['diff', 'latest', 'latest']))"
    told = subprocess.run([sys.executable, "-c", diff], cwd=project.root, capture_output=True, text=True, check=True).stdout
    assert [line for line in told.splitlines() if line.startswith("last word  ")]


@pytest.mark.parametrize("metric", registry.METRICS, ids=lambda metric: metric.name)
def test_every_metric_has_a_function(metric: registry.Metric) -> None:
    """An event's has one of the events and one of the call's largest, a call's and a rollout's one; all others have numbers."""
    alone = dict.fromkeys(("session", "suite", "score"), (False, False, False))
    functions = {"event": (True, True, False), "call": (True, False, False), "rollout": (False, False, True), **alone}

    assert functions[metric.level] == tuple(each is not None for each in (metric.of_call, metric.of_events, metric.of_rollout))
    assert len(metric.title) <= 14  # the column of a terminal
