"""Thresholds of scenarios and of means: where they are set, which one applies, and their effect on the exit status."""

from __future__ import annotations

import re

import pytest

from pytest_agentbench.gate.exit_status import CANNOT_MEASURE
from pytest_agentbench.reports import phrases
from pytest_agentbench.reports.document import Level
from tests.findings import reasons, report_of, rules, said
from tests.project import FIND_THEN_ANSWER, WAYS, Project

SHOWS_THRESHOLDS = """
def test_thresholds(thresholds):
    print("in force:", sorted(thresholds.items()))

def test_tools(rollout, thresholds):
    assert rollout.score("tsq") >= thresholds["tsq"]
"""

#: Two tools are expected and one is called: tsq is 2/3 for every scenario.
TWO_EXPECTED = ("find_item", "order_item")


@WAYS
def test_a_failing_mean_fails_the_session_alone(project: Project, way: tuple[str, ...]) -> None:
    """If all tests pass but the threshold of the mean fails, the exit status is 1, and the terminal and the files say why."""
    project.suite(expected=TWO_EXPECTED, thresholds={"tsq": 0.5, "tsq.mean": 0.9})

    result = project.run(*way, "scenarios/shop")

    result.assert_outcomes(passed=3)
    assert pytest.ExitCode.TESTS_FAILED == result.ret
    assert "agentbench: FAIL, exit status 1: gate FAIL, though no test failed" == result.outlines[-1]
    run = project.run_json
    assert ("FAIL", 1) == (run["verdict"], run["exit_status"])
    assert [("tsq.mean >= 0.9 of run", "FAIL", "run")] == [(rule["rule"], rule["verdict"], rule["of"]) for rule in run["gate"]["rules"]]
    assert [("shop", "tsq.mean >= 0.9 of run", "FAIL", 0.667)] == rules(report_of(project.directory, Level.VERBOSE))
    for text in (result.stdout.str(), (project.directory / "report.md").read_text()):
        assert re.search(r"FAIL.*: shop tsq\.mean 0\.667 \[0\.000,\s+1\.000\],\s+required\s+>=\s+0\.9", text)


def unknown(project: Project) -> list[tuple[str, ...]]:
    """Returns the suites whose thresholds are unknown according to the first page."""
    return [run.unknown_suites for (run,) in said(report_of(project.directory, Level.FIRST_PAGE), phrases.unknown_suites)]


@pytest.mark.slow
@WAYS
def test_the_command_line_wins(project: Project, way: tuple[str, ...]) -> None:
    """--agentbench-threshold overrides suite.yaml and backend.yaml, for scenarios and means, and also applies to a part of a suite."""
    project.suite(test=SHOWS_THRESHOLDS, expected=TWO_EXPECTED, thresholds={"tsq": 0.5, "tsq.mean": 0.6})
    project.backend(thresholds={"shop": {"tsq": 0.1, "tsq.mean": 0.1}})

    result = project.run(
        *way, "--agentbench-threshold=tsq=0.8", "--agentbench-threshold", "tsq.mean=0.7", "-rP", "-k", "not shop-2", "scenarios/shop"
    )

    result.assert_outcomes(passed=1, failed=2, deselected=0 if way else 1)
    result.stdout.fnmatch_lines(["in force: [[]('tsq', 0.8), ('tsq.mean', 0.7)[]]"])
    assert "agentbench: thresholds" not in result.stdout.str()
    assert [("shop", "tsq.mean >= 0.7 of run", "FAIL", 0.667)] == rules(report_of(project.directory, Level.SUMMARY))
    assert {"tsq": 0.8, "tsq.mean": 0.7} == project.run_json["settings"]["thresholds"]


@pytest.mark.slow
def test_the_backends_thresholds_win_over_the_suites(project: Project) -> None:
    """A backend may have its own thresholds for a suite. The suite's other thresholds still apply."""
    project.suite(test=SHOWS_THRESHOLDS, expected=TWO_EXPECTED, thresholds={"tsq": 0.9, "tsq.mean": 0.6})
    project.backend(thresholds={"shop": {"tsq": 0.3}, "another": {"tsq": 1.0}})

    result = project.run("-rP", "scenarios/shop")

    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["in force: [[]('tsq', 0.3), ('tsq.mean', 0.6)[]]"])
    replaced = "thresholds of shop are those of the backend embedded (tsq: 0.3), not those of its suite.yaml (tsq: 0.9)"
    assert [f"agentbench: {replaced}"] == [line for line in result.outlines if "agentbench: thresholds" in line]
    assert [("shop", "tsq.mean >= 0.6 of run", "PASS", 0.667)] == rules(report_of(project.directory, Level.SUMMARY))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("threshold", "sentence"),
    [
        ("speed=1", "ERROR: threshold 'speed': suite 'shop' does not measure this score; name one of tsq (or <score>.mean)"),
        ("tsq", "ERROR: --agentbench-threshold tsq: must be NAME=NUMBER, for example tsq=0.8 or tsq.mean=0.7"),
        ("tsq=high", "ERROR: --agentbench-threshold tsq=high: must be NAME=NUMBER, for example tsq=0.8 or tsq.mean=0.7"),
        ("tsq=nan", "ERROR: --agentbench-threshold tsq=nan: must be NAME=NUMBER, for example tsq=0.8 or tsq.mean=0.7"),
    ],
    ids=["unknown", "no-value", "no-number", "nan"],
)
def test_a_wrong_threshold_is_refused(project: Project, threshold: str, sentence: str) -> None:
    """A threshold that no suite measures, or that is not a number, is a usage error before anything starts."""
    project.suite()

    result = project.run(f"--agentbench-threshold={threshold}", "scenarios/shop")

    assert pytest.ExitCode.USAGE_ERROR == result.ret
    assert sentence in result.stderr.str().splitlines()
    assert not (project.root / "reports").exists()


@pytest.mark.slow
@WAYS
def test_an_unmeasured_session_fails(project: Project, way: tuple[str, ...]) -> None:
    """With a threshold, a run fails if every test was skipped, and also if every rollout was an infra_error."""
    skipping = "import pytest\n\n@pytest.mark.skip\ndef test_tools(rollout, thresholds):\n    pass\n"
    project.suite(test=skipping)

    skipped = project.run(*way, "scenarios/shop")

    skipped.assert_outcomes(skipped=3)
    assert CANNOT_MEASURE == skipped.ret
    assert [("shop",)] == unknown(project)

    project.suite(test="def test_tools(rollout, thresholds):\n    pass\n")
    project.backend([{"status": 500, "message": "out of memory"}])
    broken = project.run(*way, "--agentbench-retries=0", "scenarios/shop")

    broken.assert_outcomes(errors=3)
    assert CANNOT_MEASURE == broken.ret
    broken.stdout.fnmatch_lines(["*shop[[]shop-0[]]: infra_error: *500*out of memory*"])
    assert [("shop",)] == unknown(project)


@pytest.mark.slow
@WAYS
def test_a_mean_with_missing_scores_is_not_known(project: Project, way: tuple[str, ...]) -> None:
    """If a scorer failed, the mean of its scores is unknown, so a session with a threshold for it does not pass, even if no test
    reads it.
    """
    project.suite(test="def test_it(rollout): pass\n", scorers=["tsq", "./scorer.py:fussy"], thresholds={"fussy.mean": 0.5})
    project.write("scenarios/shop/scorer.py", "def fussy(scenario, rollout):\n    return 1 / (scenario.id != 'shop-1')\n")

    result = project.run(*way, "scenarios/shop")

    result.assert_outcomes(passed=3)
    assert CANNOT_MEASURE == result.ret
    report = report_of(project.directory, Level.FIRST_PAGE)
    assert [("shop", "fussy.mean >= 0.5 of run", "INCONCLUSIVE", None)] == rules(report)
    assert [True] == ["a fussy score is missing because the scorer failed" in reason for reason in reasons(report)]


@pytest.mark.slow
def test_an_agents_error_counts_as_zero_and_an_infra_error_does_not_count(project: Project) -> None:
    """In the mean, an agent_error counts as the worst value and an infra_error is left out. The tests are FAILED and ERROR."""
    agent = """
from dataclasses import dataclass
from pytest_agentbench.agents.tool_calling import ToolCalling

@dataclass(frozen=True)
class Agent(ToolCalling):
    async def run(self, scenario, llm, tools):
        if scenario.id == "shop-1":
            raise ValueError("I am lost")
        return await super().run(scenario, llm, tools)
"""
    project.suite(agent={"kind": "./agent.py:Agent"}, thresholds={"tsq": 0.5, "tsq.mean": 0.9})
    project.write("scenarios/shop/agent.py", agent)
    project.backend([{"match": {"contains": "shop-2"}, "status": 500}, *FIND_THEN_ANSWER])

    result = project.run("--agentbench-retries=0", "scenarios/shop")

    result.assert_outcomes(passed=1, failed=1, errors=1)
    suite = project.run_json["suites"]["shop"]
    assert {"ok": 1, "limit": 0, "agent_error": 1, "infra_error": 1, "cancelled": 0} == suite["rollouts"]
    assert (0.5, 1.0) == (suite["scores"]["tsq"]["mean"]["value"], suite["scores"]["tsq"]["mean_evaluable"]["value"])
    result.stdout.fnmatch_lines(
        ["*RolloutFailed: shop[[]shop-1[]]: no score 'tsq', because the rollout ended as agent_error: ValueError: I am lost (agent.py:9)"]
    )
