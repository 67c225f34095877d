"""Comparability of scores between two runs, and the effect of agent errors on a mean, for each kind of scale."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_agentbench.gate.baselines import ScoreChange
from pytest_agentbench.gate.evidence import Evidence, samples, score_limits
from pytest_agentbench.gate.rules import SuiteRule, parse_rule
from pytest_agentbench.gate.trend import History, trend_of
from pytest_agentbench.gate.verdict import judge_rules
from pytest_agentbench.records import SHARE, UNDECLARED, Scale
from pytest_agentbench.stats.decisions import Decision
from tests.gate.evidences import evidence, trial

MISTAKES = Scale("lower", 0.0, None, "mistakes", declared=True)
MARKS = Scale("lower", 1.0, 6.0, "marks", declared=True)


def run_of(values: list[float | None], scale: Scale, **facts: Any) -> Evidence:
    """Returns a run with a scenario for each value. None is a rollout whose agent raised an error."""
    trials = [
        replace(trial(number, status="ok" if value is not None else "agent_error"), scores={} if value is None else {"slips": value})
        for number, value in enumerate(values)
    ]
    return evidence(trials, scales={"shop": {"slips": scale}}, **facts)


def rule(text: str, scale: Scale) -> SuiteRule:
    return SuiteRule("shop", parse_rule(text, ("slips",), {"slips": scale}), scale, any_part=True)


def decided(text: str, run: Evidence, scale: Scale, *others: str, base: Evidence | None = None) -> Decision:
    """Returns the decision on a rule that is judged together with others."""
    rules = [rule(each, scale) for each in (text, *others)]
    return judge_rules(rules, run, {"shop": base} if base else {})[0].decision


@pytest.mark.parametrize(("scale", "mean"), [(SHARE, 0.0), (MARKS, 6.0), (MISTAKES, None), (UNDECLARED, None), (Scale(greatest=1.0), None)])
def test_the_score_of_an_agent_error(scale: Scale, mean: float | None) -> None:
    """An agent error counts as the worst end of the scale if that is finite, and is left out otherwise."""
    measured = samples(run_of([1.0, None], scale).groups["shop"], "slips", scale)

    assert {"0": (1.0,), "1": () if mean is None else (mean,)} == {name: each.scores for name, each in measured.items()}


def test_limits() -> None:
    """The limits of a score are those that the scorer declares. They are not derived from the values."""
    measured = samples(run_of([1.0, 0.0], SHARE).groups["shop"], "slips", SHARE)

    assert [(0.0, 1.0), None, None] == [score_limits(each, measured) for each in (SHARE, MISTAKES, UNDECLARED)]
    assert score_limits(MARKS, measured) is None  # 0 is not a valid mark, so the run is older than the declaration


@pytest.mark.parametrize(
    ("text", "scale", "verdict", "estimate"),
    [
        ("slips.mean <= 3 of run", MARKS, "PASS", 2.0),  # (1 + 1 + 1 + 1 + 6) / 5
        ("slips.mean <= 1.9 of run", MARKS, "FAIL", 2.0),
        ("slips.mean <= 3 of run", MISTAKES, "INCONCLUSIVE", 1.0),
        ("slips.mean <= 0.5 of run", MISTAKES, "FAIL", 1.0),
        ("slips.mean >= 1 of run", UNDECLARED, "INCONCLUSIVE", 1.0),
        ("slips.mean >= 2 of run", UNDECLARED, "FAIL", 1.0),
    ],
)
def test_a_mean_without_agent_errors_cannot_pass(text: str, scale: Scale, verdict: str, estimate: float) -> None:
    """If a mean leaves out agent errors, a rule about it cannot pass. It can still fail."""
    decision = decided(text, run_of([1.0, 1.0, 1.0, 1.0, None], scale), scale)

    assert (verdict, estimate) == (decision.verdict, decision.estimate)
    left_out = "1 of 5 rollouts ended as agent_error, more than 0 %, and are left out of slips because its scorer declares no worst value"
    assert (scale.worst is None) == (left_out in decision.reason)


@pytest.mark.parametrize(("rate", "verdict"), [("20%", "PASS"), ("19%", "INCONCLUSIVE")])
def test_errors_that_are_allowed(rate: str, verdict: str) -> None:
    """Agent errors up to the share that a rule of the suite allows do not prevent a PASS."""
    run = run_of([1.0, 1.0, 1.0, 1.0, None], MISTAKES)

    assert verdict == decided("slips.mean <= 3 of run", run, MISTAKES, f"agent_error.rate <= {rate}").verdict


def test_errors_of_the_baseline() -> None:
    """A baseline with agent errors has a mean that is too good and is not compared, unless the scale has a worst value."""
    good: list[float | None] = [*[1.0, 2.0] * 60]
    crashed = [*good[:-1], None]

    against = decided("slips.mean <= 1 vs baseline", run_of(good, MISTAKES), MISTAKES, base=run_of(crashed, MISTAKES, run="old"))
    assert ("INCONCLUSIVE", None) == (against.verdict, against.low)
    assert against.reason.startswith("in the baseline 1 of 120 rollouts ended as agent_error, more than 0 %")
    assert decided("slips.mean <= 3 vs baseline", run_of(good, MARKS), MARKS, base=run_of(crashed, MARKS, run="old")).verdict == "PASS"


def test_another_declaration() -> None:
    """Values on different scales are not compared, whether the values rose or fell."""
    run, base = run_of([1.0, 2.0] * 60, MARKS), run_of([1.0, 2.0] * 60, UNDECLARED, run="old")

    decision = decided("slips.mean <= 1 vs baseline", run, MARKS, base=base)
    assert decision.verdict == "INCONCLUSIVE"
    assert decision.reason.startswith("the scale of slips has changed (higher is taken as better")
    assert decided("slips.mean <= 1 vs baseline", run, MARKS, base=run_of([1.0, 2.0] * 60, MARKS, run="old")).verdict == "PASS"


def test_an_undeclared_score_has_a_note() -> None:
    """A note about an undeclared scale accompanies the verdict."""
    (found,) = judge_rules([rule("slips.mean >= 1 of run", UNDECLARED)], run_of([1.0], UNDECLARED), {})

    assert ("slips: higher is taken as better, because the scorer does not declare it; range unknown",) == found.notes


@pytest.mark.parametrize(("scale", "regressions"), [(MARKS, 1), (SHARE, 0), (UNDECLARED, 0)])
def test_a_trend_by_the_declaration(scale: Scale, regressions: int) -> None:
    """Rising values are a regression if lower is better. Runs with another scale are not compared."""
    old, new = (([low] * 12, f"2026-01-0{day}") for day, low in ((1, 1.0), (2, 6.0)))
    shares = [0.0] * 12, [1.0] * 12
    first, second = shares if scale == SHARE else (old[0], new[0])
    runs = [run_of([*first], scale, run="a", finished_at=old[1]), run_of([*second], scale, run="b", finished_at=new[1])]
    elsewhere = run_of([1.0] * 12, Scale(least=-7.0), run="c", finished_at="2026-01-03")

    def series(*past: Evidence) -> Any:
        suites = trend_of(History(tuple((each.facts.run, each) for each in past), ())).suites
        return next(each for each in suites["shop"].series if each.metric == "slips.mean")

    assert (not scale.falling, regressions) == ((found := series(*runs)).rising, len(found.regressions))
    assert regressions == len(series(*runs, elsewhere).regressions)


def test_a_worse_mean() -> None:
    """More mistakes are worse, and so are fewer marks if higher is better."""
    assert ScoreChange("shop", "slips", 1.0, 2.0, 3, MISTAKES).worse
    assert not ScoreChange("shop", "slips", 2.0, 1.0, 3, MISTAKES).worse
    assert ScoreChange("shop", "slips", 2.0, 1.0, 3, UNDECLARED).worse
