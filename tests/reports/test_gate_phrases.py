"""Phrases about the results of a gate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from pytest_agentbench.gate.evidence import Evidence, Trial
from pytest_agentbench.gate.verdict import judge_rules
from pytest_agentbench.reports import gate_phrases
from pytest_agentbench.reports.document import Code, plain, spans
from pytest_agentbench.runs.results import BaselineRun, RoundsResult, RuleResult
from pytest_agentbench.session.gate import rule_result
from pytest_agentbench.stats.decisions import Suspect
from tests.amounts import amounts
from tests.gate.evidences import asked, evidence, trial
from tests.made_runs import gate_result
from tests.made_runs import rule_result as made_rule


def run(n: int = 100, ttft: float = 100.0, wrong: int = 0, trials: int = 3, **facts: Any) -> Evidence:
    def one(scenario: int, number: int) -> Trial:
        score = 0.0 if scenario < wrong else 0.5 + scenario % 5 / 10
        return trial(scenario, score, number=number, ttft=ttft + Random(scenario).randrange(10))

    return evidence((one(scenario, number) for number in range(trials) for scenario in range(n)), **facts)


def rule(text: str, new: Evidence, base: Evidence | None = None) -> RuleResult:
    return rule_result(judge_rules([asked(text)], new, {"shop": base} if base else {})[0])


BOTH = ["100", "300", "300", "95 %"]
ONE = ["100", "300", "95 %"]


@pytest.mark.parametrize(
    ("text", "verdict", "required", "numbers", "basis"),
    [
        (
            "tsq.mean >= -0.1 vs baseline",
            "PASS",
            ">= -0.1 vs baseline (suite)",
            ["+0.000", "-0.011", "+0.011", "-0.100", *BOTH],
            "trials, 95 % paired t",
        ),
        (
            "tsq.mean >= -0.1 vs baseline of population",
            "PASS",
            ">= -0.1 vs baseline (population)",
            ["+0.000", "-0.034", "+0.034", "-0.100", *BOTH],
            "trials, 95 % adjusted t",
        ),
        (
            "tsq.mean >= 0.5 of population",
            "PASS",
            ">= 0.5 (population)",
            ["0.700", "0.661", "0.727", "0.500", *ONE],
            "trials, 95 % adjusted t",
        ),
        ("tsq.mean >= 0.5", "PASS", ">= 0.5 (suite)", ["0.700", "0.669", "0.728", "0.500", *ONE], "trials, 95 % between-scenario t"),
        (
            "ttft.p50 <= 0.2s",
            "PASS",
            "<= 0.2s",
            ["104.5 ms", "102.9 ms", "106.1 ms", "200.0 ms", *ONE, "19"],
            "calls, 95 % moving blocks of 19",
        ),
        (
            "e2e.p50 <= +9% vs baseline",
            "PASS",
            "<= +9% vs baseline",
            ["+0.0 %", "-0.0 %", "+0.0 %", "+9.0 %", *BOTH, "14"],
            f"calls, 95 % moving blocks of 14; {gate_phrases.LOAD}",
        ),
        ("rollouts_per_hour >= -5% vs baseline", "FAIL", ">= -5% vs baseline", ["-10.0 %", "-5.0 %", "300"], "rollouts"),
        ("rollouts_per_hour >= 1", "PASS", ">= 1", ["900.0", "1.000", "300"], "rollouts"),
        ("infra_error.rate <= 2%", "PASS", "<= 2%", ["0.00 %", "2.00 %", "300"], "rollouts"),
        ("output_tokens_per_s >= 1", "INCONCLUSIVE", ">= 1", [], ">= 1"),
    ],
)
def test_rules(text: str, verdict: str, required: str, numbers: list[str], basis: str) -> None:
    """The text of a rule has its verdict, metric, requirement, and, in the metric's unit, estimate, interval and threshold."""
    sentence = gate_phrases.rule(rule(text, run(rates={"rollouts_per_hour": 900.0}), run()))
    metric = f"{verdict}: shop {text.split(maxsplit=1)[0]}"
    result, _, rest = sentence.partition(f", required {required}")

    assert result.startswith(metric)
    assert sentence.endswith(basis)
    assert numbers == [*amounts(result.removeprefix(metric)), *amounts(rest)]


def test_rules_in_short() -> None:
    """The short text of a rule has its verdict, its estimate with the interval, and its requirement."""
    result = rule("tsq.mean >= -0.1 vs baseline", run(), run())

    assert "PASS: shop tsq.mean +0.000 [-0.011, +0.011], required >= -0.1 vs baseline (suite)" == gate_phrases.result(result)
    assert gate_phrases.rule(result).startswith(gate_phrases.result(result))


def said(phrase: Callable[[RuleResult], str], *rules: RuleResult) -> list[bool]:
    """Returns for each rule whether a phrase has a text about it."""
    return [bool(phrase(each)) for each in rules]


def test_details() -> None:
    """The texts of a rule have the detectable difference, the reason why nothing was decided, and the scenarios that were left out."""
    wide = rule("tsq.mean >= -0.01 vs baseline", run(), run())
    small = rule("tsq.mean >= -0.01 vs baseline of population", run(n=2), run(n=2, wrong=1))
    of_population = rule("tsq.mean >= -0.02 vs baseline of population", run(wrong=1), run())
    nothing = rule("output_tokens_per_s >= 1", run())
    part = rule("tsq.mean >= -0.05 vs baseline", run(n=90), run())
    missed = rule("ttft.p50 <= 9s", run())

    assert (["300", "0.011", "0.01"], []) == (amounts(gate_phrases.reason(wide)), [*wide.notes])
    assert ["0.022", "4", "5", "0.011"] == amounts(gate_phrases.power(wide))
    assert ["", "", ""] == [each(wide) for each in (gate_phrases.least_margin, gate_phrases.p_worse, gate_phrases.left_out_scenarios)]
    assert (["1.000"], ["0.034"]) == (amounts(gate_phrases.least_margin(small)), amounts(gate_phrases.least_margin(of_population)))
    assert "output_tokens_per_s is unknown in the run" == gate_phrases.reason(nothing)
    others = (gate_phrases.power, gate_phrases.least_margin, gate_phrases.p_worse, gate_phrases.left_out_scenarios)
    assert [""] * 4 == [each(nothing) for each in others]
    assert (["10"], True) == (
        amounts(gate_phrases.left_out_scenarios(part)),
        "only in the baseline" in gate_phrases.left_out_scenarios(part),
    )
    distance, *reliability = amounts(gate_phrases.power(missed))
    assert (True, ["4", "5"]) == (distance.endswith(" ms"), reliability)


def test_a_rule_that_was_decided_has_no_reason() -> None:
    """A decided rule has no reason.

    If the interval contains the threshold, the reason asks for more trials of a suite, or more scenarios of a population.
    """
    decided, suite, population = (
        made_rule("tsq.mean >= 0.5", verdict, 0.5, of=of)
        for verdict, of in (("PASS", "suite"), ("INCONCLUSIVE", "suite"), ("INCONCLUSIVE", "population"))
    )

    assert [False, True, True] == said(gate_phrases.reason, decided, suite, population)
    assert ("trials", "scenarios") == tuple(gate_phrases.reason(each).split("more ")[1].split()[0] for each in (suite, population))


def test_p_worse() -> None:
    """The text has the p-value if it was computed, also if it is zero."""
    known, zero, unknown = (made_rule("tsq.mean >= 0.5", "PASS", p_worse=p) for p in (0.04321, 0.0, None))

    assert ["0.0432"] == amounts(gate_phrases.p_worse(known))
    assert [True, False] == said(gate_phrases.p_worse, zero, unknown)


def test_deterministic() -> None:
    """For a deterministic suite, the text has the share of failures that may be hidden. If trials differ, a note says so."""
    asked_so = replace(asked("tsq.mean >= -0.001 vs baseline"), deterministic=True)
    judged = rule_result(judge_rules([asked_so], run(), {"shop": run()})[0])
    differing = judge_rules(
        [asked_so], evidence([*(trial(i, 0.5 + i % 2 / 2 * (k % 2), number=k) for i in range(9) for k in (1, 2))]), {"shop": run()}
    )

    requirement = ", required >= -0.001 vs baseline (suite)"
    short, long = (each(judged).replace(requirement, "") for each in (gate_phrases.result, gate_phrases.rule))
    assert ["+0.000", "-0.001", "100", "300", "300", "1.2 %"] == amounts(long)
    assert long.startswith("PASS: shop tsq.mean ")
    assert "300 trials, deterministic; " in long
    assert ["+0.000", "1.2 %"] == amounts(short)
    assert (
        "the suite is marked deterministic, but trials of 4 scenarios differ (1), so it was judged like any other suite"
        in differing[0].notes
    )


def test_the_gate_as_a_whole() -> None:
    """The verdict comes first, then the baseline, and then the tests that it overrules."""
    gate = gate_result("FAIL", tests_below=1, baselines=dict.fromkeys(("shop", "bank"), BaselineRun("a", None, "")))
    verdict, compared, overruled = gate_phrases.gate(gate).split("; ")

    assert ("FAIL", "compared with a") == (verdict, compared)
    assert ["1"] == amounts(overruled)
    assert ["PASS", "shown only: the tests decide"] == gate_phrases.gate(gate_result("PASS", decides=False)).split("; ")
    assert "PASS" == gate_phrases.gate(gate_result("PASS"))


def test_scenarios_that_got_worse() -> None:
    """A claim has the scores before and now, and the p-value. A ranking has no p-value."""
    result, suspect = made_rule("tsq.mean >= -0.05 vs baseline", "FAIL"), Suspect("b-17", 0.9, 0.0, 0.001084, claimed=True)

    name, change = gate_phrases.change(result, suspect, "")
    *same, p = spans(gate_phrases.claim(result, suspect, ""))
    assert [name, change] == same
    assert Code("b-17", "scenario") == name
    assert (["0.900", "0.000"], ["0.00108"]) == (amounts(change), amounts(p))
    assert plain(change).startswith(" tsq ")
    assert " bank tsq " in plain(gate_phrases.claim(result, suspect, "bank"))
    assert ["1.000", "0.000"] == amounts(gate_phrases.fall(replace(suspect, base=1.0)))


def test_the_outcome_of_a_rule() -> None:
    """The outcome of a rule has the verdict, the estimate with its interval, and the reason if nothing was decided."""
    failed = made_rule("x", "FAIL", -0.1, low=-0.15, high=-0.05)
    open_one = made_rule("x", "INCONCLUSIVE", reason="the timings are of a saturated client")

    assert "FAIL: -0.1 [-0.15, -0.05]" == gate_phrases.outcome(failed)
    assert "INCONCLUSIVE: nothing measured; the timings are of a saturated client" == gate_phrases.outcome(open_one)
    assert "PASS: 0" == gate_phrases.outcome(made_rule("x", "PASS", 0.0))


@pytest.mark.parametrize(
    ("ran", "stands", "numbers"),
    [(2, True, ["2", "5", "300"]), (5, False, ["5"]), (0, False, ["5"]), (3, False, ["3", "5"])],
    ids=["stands", "all", "not one", "broken off"],
)
def test_rounds(ran: int, stands: bool, numbers: list[str]) -> None:
    """The text has the rounds after which the verdict was decided, and the rollouts saved by that, or the rounds that ran."""
    rounds = RoundsResult(ran=ran, most=5, stands=stands, saved=300 if stands else 0, looks=())

    assert numbers == amounts(gate_phrases.rounds_of_trials(rounds))
    assert ["PASS", gate_phrases.rounds_of_trials(rounds)] == gate_phrases.gate(gate_result("PASS"), rounds).split("; ")
