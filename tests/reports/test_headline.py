"""Phrases about the result of a run, and about disturbances."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_agentbench.gate.exit_status import EXITS
from pytest_agentbench.records import Rollout, Score
from pytest_agentbench.reports import phrases
from pytest_agentbench.reports.headline import ENDINGS, headline
from pytest_agentbench.runs.results import EarlierRuns
from pytest_agentbench.runs.run_file import OutcomeCounts, Plan
from tests.amounts import amounts
from tests.made_runs import gate_result, rule_result, run_of

RULE = gate_result("PASS", rule_result("tsq.mean >= 0.8 of run", "PASS", 1.0))


def test_a_headline() -> None:
    """The headline has the verdict and its reason, the gate's verdict if it differs, scores, and shares of rollouts."""
    lost = [Rollout("shop", f"s{number}", "default", 1, "agent_error") for number in range(2)]
    run = run_of(Rollout("shop", "s", "default", 1, "ok", scores={"tsq": Score(1.0)}), *lost, gate=RULE, verdict="FAIL", exit_status=1)

    answer, gate, score, errors, left = headline(run).split("; ")

    assert answer.startswith("FAIL, exit status 1: ")
    assert answer.endswith(EXITS[1].text)
    assert "gate PASS" == gate
    assert score.startswith("shop tsq 0.333 [")
    assert (["2", "3", "66.7 %"], True) == (amounts(errors), errors.endswith(ENDINGS["agent_error"]))
    assert ["1", "3", "33.3 %"] == amounts(left)


def test_a_suite_without_a_rule_is_named() -> None:
    """A PASS names the suites without a rule or threshold."""
    run = run_of(Rollout("shop", "s", "default", 1, "ok", scores={"tsq": Score(1.0)}), gate=RULE)
    silent = replace(run.suites["shop"], thresholds={"tsq.mean": 0.5})
    both = replace(run, suites={**run.suites, "hle": silent})

    verdict, *means, left = headline(run).split("; ")
    assert ("PASS", ["1", "3", "33.3 %"]) == (verdict.partition(":")[0], amounts(left))
    verdict, named, *means, _ = headline(both).split("; ")
    assert ("PASS", True) == (verdict.partition(":")[0], named.endswith(" hle"))
    assert ["hle tsq 1.000"] == [text.partition(" [")[0].removesuffix(" (no interval)") for text in means]
    failed = headline(replace(both, verdict="FAIL"))
    assert " hle;" not in failed


def test_many_suites() -> None:
    """A headline names three suites and counts the others, also among suites without a rule."""
    run = run_of()
    silent_suite = replace(run.suites["shop"], thresholds={})
    many = replace(run, suites={f"s{number}": silent_suite for number in range(5)}, gate=RULE)

    _, silent, *means, _ = headline(many).split("; ")

    assert (True, ["2"]) == ("s0, s1, s2 " in silent, amounts(silent))
    assert ["s0", "s1", "s2"] == [each.split()[0] for each in means[:3]]
    assert ["2"] == amounts(means[3])


def test_a_complete_plan() -> None:
    """The text is empty if all planned rollouts ran."""
    assert "PASS: shop x, required >= 1; shop tsq not measured" == headline(
        run_of(plan=Plan(3, 3, 0), gate=gate_result("PASS", rule_result("x >= 1", "PASS")))
    )


@pytest.mark.parametrize(
    ("runs", "failed", "place"),
    [
        (0, 0, ""),
        (2, 0, ""),
        (1, 1, "2nd"),
        (2, 2, "3rd"),
        (10, 3, "11th"),
        (11, 3, "12th"),
        (12, 3, "13th"),
        (21, 1, "22nd"),
        (111, 1, "112th"),
    ],
)
def test_earlier_runs(runs: int, failed: int, place: str) -> None:
    """If an earlier run of the setup was not PASS, the text has the number of this run and the number of those."""
    text = phrases.earlier_runs(EarlierRuns(runs, ("x",) * failed))

    assert ([place[:-2], str(failed)] if place else []) == amounts(text)
    assert (f" {place} run " in text) == bool(place) == bool(text)
    assert "" == phrases.earlier_runs(None)
    assert not text or text in headline(run_of(earlier=EarlierRuns(runs, ("x",) * failed)))


def test_the_number_that_decided() -> None:
    """A headline has the value of the rule that decided, and this mean only once. If the rule judges the value alone, it says so beside
    the interval of the mean.
    """
    rollouts = [Rollout("shop", f"s{number}", "default", 1, "ok", scores={"tsq": Score(number / 2)}) for number in range(3)]
    low = rule_result("tsq.mean >= 0.8 of run", "FAIL", 0.5, of="run")
    slow = rule_result("ttft.p50 <= 5ms", "FAIL", 9.0, low=8.0, high=10.0, kind="latency")
    run = run_of(*rollouts, gate=gate_result("FAIL", low), verdict="FAIL", exit_status=1, plan=Plan(3, 3, 0))
    mean = run.suites["shop"].main_mean
    assert mean is not None

    text = headline(run)
    required = "required >= 0.8 (this run, judged by the measured value)"
    assert f"FAIL, exit status 1: shop tsq.mean 0.500 [{mean.low:.3f}, {mean.high:.3f}], {required}" == text
    text = headline(replace(run, gate=gate_result("FAIL", slow, low)))
    assert text.startswith(
        "FAIL, exit status 1: shop ttft.p50 9.0 ms [8.0 ms, 10.0 ms], required <= 5ms, and 1 more rule; shop tsq 0.500 ["
    )


def test_tests_that_decided() -> None:
    """If tests failed, or could not be measured, the headline has their numbers; a gate with another verdict is named beside them."""
    run = run_of(gate=RULE, verdict="FAIL", exit_status=1, tests=OutcomeCounts(passed=7, failed=2, errors=1))

    assert headline(run).startswith("FAIL, exit status 1: 2 of 10 tests failed; 1 of 10 tests could not be measured; gate PASS; ")
    lost = replace(run, verdict="NOT MEASURED", exit_status=6, gate=None, tests=replace(run.tests, failed=0))
    assert headline(lost).startswith("NOT MEASURED, exit status 6: 1 of 8 tests could not be measured, so the quality is unknown; ")
