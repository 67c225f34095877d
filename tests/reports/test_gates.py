"""How reports say what a gate found."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from pytest_agentbench.gate.evidence import Evidence, Trial
from pytest_agentbench.gate.verdict import judge_rules
from pytest_agentbench.reports.gates import claim_lines, detail_lines, gate_text, ranking_lines, rule_text
from pytest_agentbench.runs.verdicts import BaselineRun, RuleResult
from pytest_agentbench.session.gate import rule_result
from tests.gate.evidences import asked, evidence, trial
from tests.made_runs import gate_result


def run(n: int = 100, ttft: float = 100.0, wrong: int = 0, trials: int = 3, **facts: Any) -> Evidence:
    def one(scenario: int, number: int) -> Trial:
        score = 0.0 if scenario < wrong else 0.5 + scenario % 5 / 10
        return trial(scenario, score, number=number, ttft=ttft + Random(scenario).randrange(10))

    return evidence((one(scenario, number) for number in range(trials) for scenario in range(n)), **facts)


def rule(text: str, new: Evidence, base: Evidence | None = None) -> RuleResult:
    return rule_result(judge_rules([asked(text)], new, {"shop": base} if base else {})[0])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "tsq.mean >= -0.1 vs baseline",
            (
                "tsq.mean >= -0.1 vs baseline: PASS of suite, +0.000 [-0.011, +0.011] against -0.100; "
                "100 scenarios, 300 and 300 trials, 95 % paired t"
            ),
        ),
        (
            "tsq.mean >= -0.1 vs baseline of population",
            (
                "tsq.mean >= -0.1 vs baseline of population: PASS of population, +0.000 [-0.034, +0.034] against -0.100; "
                "100 scenarios, 300 and 300 trials, 95 % adjusted t"
            ),
        ),
        (
            "tsq.mean >= 0.5 of population",
            (
                "tsq.mean >= 0.5 of population: PASS of population, 0.700 [0.661, 0.727] against 0.500; "
                "100 scenarios, 300 trials, 95 % adjusted t"
            ),
        ),
        (
            "tsq.mean >= 0.5",
            "tsq.mean >= 0.5: PASS of suite, 0.700 [0.669, 0.728] against 0.500; 100 scenarios, 300 trials, 95 % between-scenario t",
        ),
        (
            "ttft.p50 <= 0.2s",
            "ttft.p50 <= 0.2s: PASS, 104.5 ms [102.9 ms, 106.1 ms] against 200.0 ms; 100 scenarios, 300 calls, 95 % moving blocks of 19",
        ),
        (
            "e2e.p50 <= +9% vs baseline",
            (
                "e2e.p50 <= +9% vs baseline: PASS, +0.0 % [-0.0 %, +0.0 %] against +9.0 %; "
                "100 scenarios, 300 and 300 calls, 95 % moving blocks of 14; the load may differ"
            ),
        ),
        (
            "rollouts_per_hour >= -5% vs baseline",
            "rollouts_per_hour >= -5% vs baseline: FAIL, -10.0 % against -5.0 %; a fact about 300 rollouts",
        ),
        ("rollouts_per_hour >= 1", "rollouts_per_hour >= 1: PASS, 900.0 against 1.000; a fact about 300 rollouts"),
        ("infra_error.rate <= 2%", "infra_error.rate <= 2%: PASS, 0.00 % against 2.00 %; a fact about 300 rollouts"),
        ("output_tokens_per_s >= 1", "output_tokens_per_s >= 1: INCONCLUSIVE"),
    ],
)
def test_rules(text: str, said: str) -> None:
    """Verdict, estimate, interval and threshold in the metric's unit, and what they rest on."""
    assert f"shop {said}" == rule_text(rule(text, run(rates={"rollouts_per_hour": 900.0}), run()))


def test_details() -> None:
    """What could have been found, why nothing was decided, and what was left out."""
    wide = [*detail_lines(rule("tsq.mean >= -0.01 vs baseline", run(), run()))]
    small = [*detail_lines(rule("tsq.mean >= -0.01 vs baseline of population", run(n=2), run(n=2, wrong=1)))]
    changed = run(wrong=1)
    of_population = [*detail_lines(rule("tsq.mean >= -0.02 vs baseline of population", changed, run()))]
    nothing = [*detail_lines(rule("output_tokens_per_s >= 1", run()))]
    part = [*detail_lines(rule("tsq.mean >= -0.05 vs baseline", run(n=90), run()))]
    missed = [*detail_lines(rule("ttft.p50 <= 9s", run()))]

    assert [
        (
            "no score differs in 300 rollouts, which rules out a drop of 0.011; the margin is 0.01: "
            "4 trials, or `deterministic: true` where trials never differ"
        ),
        ("a change of 0.022 is found by such a run 4 times out of 5; with a margin of 0.011 it passes as often when nothing has changed"),
    ] == wide
    assert "a run of this size cannot pass with a margin below 1.000, whatever it measures" in small
    assert "a run of this size cannot pass with a margin below 0.034, whatever it measures" in of_population
    assert ["the run has no such number"] == nothing
    assert "scenarios left out: 10 only in the baseline" in part
    assert missed[0].startswith("a distance from the limit of ")
    assert missed[0].endswith(" ms is found by such a run 4 times out of 5")


def test_deterministic() -> None:
    """The word of the suite stands in the verdict's line, with what it hides if it is wrong."""
    asked_so = replace(asked("tsq.mean >= -0.001 vs baseline"), deterministic=True)
    judged = judge_rules([asked_so], run(), {"shop": run()})[0]
    differing = judge_rules(
        [asked_so], evidence([*(trial(i, 0.5 + i % 2 / 2 * (k % 2), number=k) for i in range(9) for k in (1, 2))]), {"shop": run()}
    )

    assert rule_text(rule_result(judged)) == (
        "shop tsq.mean >= -0.001 vs baseline: PASS of suite, +0.000 against -0.001; 100 scenarios, 300 and 300 trials, deterministic; "
        "were the suite not deterministic, failures in up to 1.2 % of rollouts could have gone unseen"
    )
    assert "the suite says that it is deterministic, but trials of 4 scenarios differ (1): judged as any other" in differing[0].notes


def test_the_whole() -> None:
    """The verdict comes first, then what it was compared with and what it overrules."""
    gate = gate_result("FAIL", tests_below=1, baselines=dict.fromkeys(("shop", "bank"), BaselineRun("a", None, "")))

    assert "FAIL; compared with a; 1 test below a threshold, which does not count here" == gate_text(gate)
    assert "PASS; shown only: the tests decide" == gate_text(gate_result("PASS", decides=False))


def test_which_scenarios_got_worse() -> None:
    """From five trials on the surest ten, and how many more; with fewer a ranking, without a p-value."""
    found = rule("tsq.mean >= -0.05 vs baseline", run(n=30, wrong=12, trials=6), run(n=30, trials=6))
    lines = [*claim_lines(gate_result("FAIL", found))]

    assert "4 tsq 0.900 -> 0.000 (p 0.00108)" == lines[0]
    assert (11, "2 more of tsq, in run.json") == (len(lines), lines[-1])
    assert [] == [*ranking_lines(gate_result("FAIL", found))]
    few = rule("tsq.mean >= -0.05 vs baseline", run(n=30, wrong=3), run(n=30))
    assert [] == [*claim_lines(gate_result("FAIL", few))]
    assert ["2 tsq 0.700 -> 0.000", "1 tsq 0.600 -> 0.000", "0 tsq 0.500 -> 0.000"] == [*ranking_lines(gate_result("FAIL", few))]
