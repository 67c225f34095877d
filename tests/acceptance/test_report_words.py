"""report.md contains no values in Python's notation."""

from __future__ import annotations

import re

import pytest

from pytest_agentbench.records import Json
from pytest_agentbench.reports import gate_phrases, phrases, serving_phrases, suite_phrases
from tests.findings import report_of, said, tables
from tests.project import FIND_THEN_ANSWER, Project

#: Python's constants, special numbers, containers of quoted strings, objects and classes.
PYTHON = re.compile(
    r"\b(None|True|False|nan|inf)\b|[\[{(]'|'[\]})]|', '|': |\w\(\)|PosixPath|<\w+\.|<class |\bdefaultdict\b|\bobject at 0x"
)

WRONG: list[Json] = [
    {"match": {"turn": 0, "contains": "shop-1:"}, "tool_calls": [{"name": "order_item", "arguments": {"item": "x"}}]},
    {"match": {"contains": "shop-2:"}, "status": 500},
    {"match": {"contains": "shop-3:"}, "text": "No."},
    *FIND_THEN_ANSWER,
]
SCORER = "def fussy(scenario, rollout):\n    raise LookupError('the shelf is gone')\n"
QUARANTINE = {"scenario": "shop-1", "owner": "ada", "reason": "the label is disputed", "expires": "2999-12-31"}


def python_in(project: Project) -> list[str]:
    """Returns the lines of report.md that contain Python's notation."""
    return [line for line in (project.directory / "report.md").read_text().splitlines() if PYTHON.search(line)]


def test_the_pattern_finds_python() -> None:
    """The pattern matches Python's notation, but neither English nor JSON."""
    reprs = [None, True, float("nan"), float("inf"), {"a": 1}, ["a"], ("a", "b"), {"a"}, QUARANTINE, object(), range]

    assert [] == [each for each in map(repr, reprs) if not PYTHON.search(each)]
    assert not PYTHON.search('the pool\'s `{"kind": "tool_calling", "items": ["a"], "seed": null}`, at the end (a\'s), none; information')


def test_the_richest_report(project: Project) -> None:
    """A report with gate, baseline, quarantine, thresholds, objectives, settings, failures, errors and two sessions contains no Python."""
    project.suite(scenarios=8)
    project.good_run("before")
    project.suite(
        scenarios=8,
        scorers=["tsq", "hallucinated", "./scorer.py:fussy"],
        thresholds={"tsq": 0.5, "tsq.mean": 0.9},
        quarantine=[QUARANTINE],
        gate=["infra_error.rate <= 2%", "tsq.mean >= 0.9"],
        variants={"warm": {"agent": {"temperature": 0.7}}},
    )
    project.write("scenarios/shop/scorer.py", SCORER)
    project.backend(WRONG)
    options = (
        *(
            "--agentbench-baseline=before",
            "--agentbench-gate=tsq.mean >= -0.05 vs baseline",
            "--agentbench-gate=ttft.p99 <= +5% vs baseline",
        ),
        *(
            "--agentbench-slo=ttft=5s",
            "--agentbench-slo=itl=1s",
            "--agentbench-set=agent.max_turns=5",
            "--agentbench-variants=default,warm",
        ),
        *("--agentbench-retries=1", "--agentbench-trials=2", "--agentbench-threshold=tsq.mean=0.95"),
    )
    project.run("scenarios/shop", *options, "-k", "shop-2 or shop-3")

    result = project.run("--agentbench-resume", "scenarios/shop", *options)

    report = report_of(project.directory)
    told = (
        phrases.sessions,
        gate_phrases.gate,
        suite_phrases.quarantined,
        suite_phrases.scorer_failure,
        serving_phrases.goodput,
        phrases.settings,
    )
    assert [] == [phrase.__name__ for phrase in told if not said(report, phrase)]
    assert ["agent.max_turns"] == [*said(report, phrases.settings)[0][0]]
    assert any(row[1] == "infra_error" for table in tables(report, "scenario") for row in table.rows)
    assert any(row[0] == serving_phrases.ADJUSTED for table in tables(report, "milliseconds") for row in table.rows)
    assert [] == python_in(project), result.ret


@pytest.mark.slow
def test_the_report_of_two_arms(project: Project) -> None:
    """The report of an A/B session with comparisons, blocks, cache resets and a missing arm contains no Python."""
    project.suite(scenarios=3)
    project.backend(name="good")

    project.run("--agentbench-ab=a=good,b=good", "--agentbench-cache=cold")
    assert 1 == len(said(report_of(project.directory), gate_phrases.arms))
    assert [] == python_in(project)
    project.run("--agentbench-ab=a=good,gone=http://127.0.0.1:9/v1")

    assert [] == [line for line in python_in(project) if "the backend 'url' is not available" not in line]


@pytest.mark.slow
def test_the_report_of_an_agent_that_judges_itself(project: Project) -> None:
    """The report of an agent with drafts and judges contains no Python."""
    project.shipped("banking")

    project.run("scenarios/banking", "--agentbench-agent=self_evaluating", "--agentbench-limit=3")

    assert ["agent", "judge"] == [row[0] for row in tables(report_of(project.directory), "role")[0].rows]
    assert [] == python_in(project)
