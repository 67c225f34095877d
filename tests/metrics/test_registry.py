"""Adding a metric needs only an entry in the registry."""

from __future__ import annotations

import csv
import shutil
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
    """A new metric appears in run.json, report.md, terminal, OpenMetrics, JUnit, gate rules, objectives and comparisons."""
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
    assert any(line.startswith("last word  ") for line in result.outlines)
    assert 'agentbench_last_word_seconds{statistic="mean"}' in (project.directory / "metrics.txt").read_text()
    assert "last_word_ms_p50" in (project.root / "junit.xml").read_text()
    shutil.copytree(project.directory.resolve(), project.root / "reports" / "again")
    assert [line for line in made_up_command(project, "compare", "latest", "again") if line.startswith("last word p50  ")]


MADE_UP_RATE = """
from pytest_agentbench.metrics import registry
from pytest_agentbench.metrics.slice_metrics import ratio


def tool_calls_per_minute(part):
    return ratio(int(part.rollouts["tool_calls"].sum()) * 60, part.seconds)


registry.METRICS += (
    registry.Metric(
        "tool_calls_per_minute", "tool calls/min", "session", "tool calls per minute", of_slice=tool_calls_per_minute, rising=True
    ),
)
"""
RATE = "tool_calls_per_minute"


def test_a_made_up_rate_is_everywhere(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new rate appears in run.json, report.md, terminal, OpenMetrics, CSV, comparisons, gate rules and arms."""
    monkeypatch.setenv("GITLAB_CI", "true")
    project.write("made_up.py", MADE_UP_RATE)
    project.backend(name="quick", ttft_ms=20, itl_ms=20)  # timings of an engine that never waits may be unusable
    project.backend(name="slow", ttft_ms=70, itl_ms=20)
    project.suite(scenarios=3)
    made_up = ("-p", "made_up", "-v", "--agentbench-backend=quick")

    first = project.run(*made_up, "--agentbench-window=0s:", "scenarios/shop")

    performance = project.run_json["performance"]
    tools = sum(len(each.tool_calls) for each in project.rollouts)
    assert tools * 60 / performance["span_s"] == pytest.approx(performance[RATE])
    assert tools * 60 / performance["window"]["seconds"] == pytest.approx(performance["window"][RATE])
    for text in (first.stdout.str(), (project.directory / "report.md").read_text()):
        assert f" {performance[RATE]:,.1f} tool calls/min, " in text
    assert f"agentbench_{RATE} {performance[RATE]}" in (project.directory / "metrics.txt").read_text()
    shutil.copytree(project.directory.resolve(), project.root / "reports" / "again")
    (row,) = [line for line in made_up_command(project, "compare", "latest", "again") if line.startswith("tool calls/min")]
    assert [f"{performance[RATE]:,.1f}"] * 2 == row.split()[2:]
    made_up_command(project, "export", "latest", "--as", "csv")
    table = [*csv.DictReader((project.directory / "csv" / "metrics.csv").read_text().splitlines())]
    assert {"run": performance[RATE], "window": performance["window"][RATE]} == {
        each["part"]: float(each["value"]) for each in table if each["metric"] == RATE
    }

    rules = (f"--agentbench-gate={RATE} >= 1 of run", f"--agentbench-gate={RATE} >= -99% vs baseline")
    project.run(*made_up, f"--agentbench-baseline={project.directory.resolve().name}", *rules, "scenarios/shop")

    judged = {rule["rule"]: rule for rule in project.run_json["gate"]["rules"]}
    assert [f"{RATE} >= 1 of run", f"{RATE} >= -99% vs baseline"] == [*judged]
    assert ["PASS", "PASS"] == [rule["verdict"] for rule in judged.values()]
    now = project.run_json["performance"][RATE]
    assert [now, now / performance[RATE]] == [rule["estimate"] for rule in judged.values()]

    project.run("-p", "made_up", "--agentbench-ab=a=quick,b=slow", "scenarios/shop")

    arms = {arm["name"]: arm for arm in project.run_json["ab"]["arms"]}
    of_arms = {name: sum(len(each.tool_calls) for each in project.rollouts if each.variant == name) for name in arms}
    assert {name: pytest.approx(count * 60 / arms[name]["busy_s"]) for name, count in of_arms.items()} == {
        name: arm[RATE] for name, arm in arms.items()
    }
    assert f'agentbench_arm_{RATE}{{arm="b"}} {arms["b"][RATE]}' in (project.directory / "metrics.txt").read_text()


def made_up_command(project: Project, *words: str) -> list[str]:
    """Returns the lines that a command prints in a process with the made-up metric."""
    command = f"import sys, made_up; from pytest_agentbench.cli import main; sys.exit(main({list(words)!r}))"
    return subprocess.run([sys.executable, "-c", command], cwd=project.root, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize("metric", registry.METRICS, ids=lambda metric: metric.name)
def test_every_metric_has_a_function(metric: registry.Metric) -> None:
    """Each metric has the functions of its level. Events also have one for the largest value; sessions and suites use slices."""
    durations = {"event": (True, True, False, False), "call": (True, False, False, False), "rollout": (False, False, True, False)}
    functions = durations | dict.fromkeys(("session", "suite"), (False, False, False, True)) | {"score": (False, False, False, False)}

    found = (metric.of_call, metric.of_events, metric.of_rollout, metric.of_slice)
    assert functions[metric.level] == tuple(each is not None for each in found)
    assert len(metric.title) <= 14  # the column of a terminal
