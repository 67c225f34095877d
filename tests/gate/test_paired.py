"""Verdicts on runs: which method, what is counted, and that too little is never a PASS."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_agentbench.gate.decisions import Missing, judge
from pytest_agentbench.gate.paired import Sample, against_limit, compare, pair


def run(*scores: tuple[float, ...], clusters: int = 0) -> dict[str, Sample]:
    """A run with these trials of scenarios 0, 1, ..., in so many clusters."""
    return {str(i): Sample("same", trials, str(i % clusters) if clusters else None) for i, trials in enumerate(scores)}


def test_pairs_are_joined_by_id_and_content() -> None:
    """Everything that has no partner is counted under its reason; nothing is dropped in silence."""
    new = {"both": Sample("a", (1.0,)), "new": Sample("a", (1.0,)), "changed": Sample("b", (1.0,)), "lost": Sample("a", ())}
    base = {"both": Sample("a", (0.0, 1.0)), "changed": Sample("a", (1.0,)), "lost": Sample("a", (1.0,)), "old": Sample("a", (1.0,))}
    pairs, missing = pair(new, base)

    assert ["both"] == [*pairs]
    assert 0.5 == pairs["both"].difference
    assert Missing(only_new=1, only_base=1, changed=1, unmeasured=1) == missing
    assert 4 == missing.total
    assert missing == compare(new, base, 0.05).missing


@pytest.mark.parametrize(
    ("low", "high", "verdict", "mirrored"),
    [
        (-0.04, 0.01, "PASS", "PASS"),
        (-0.06, 0.01, "INCONCLUSIVE", "PASS"),
        (-0.05, 0.01, "INCONCLUSIVE", "PASS"),
        (-0.2, -0.06, "FAIL", "PASS"),
        (-0.2, -0.05, "INCONCLUSIVE", "PASS"),
        (0.06, 0.2, "PASS", "FAIL"),
        (None, None, "INCONCLUSIVE", "INCONCLUSIVE"),
    ],
)
def test_judging(low: float | None, high: float | None, verdict: str, mirrored: str) -> None:
    """The whole interval has to lie beyond the threshold, and on it is not beyond it."""
    assert verdict == judge(low, high, -0.05)
    assert mirrored == judge(low, high, 0.05, higher_is_better=False)


def test_a_comparison_says_everything() -> None:
    """Estimate, interval, margin, scenarios, trials, method and what such a run can find."""
    decision = compare(run(*[(1.0, 0.0)] * 200), run(*[(1.0, 0.0, 1.0, 0.0)] * 200), 0.05)

    assert ("PASS", 0.0, -0.05, 200, (400, 800), "adjusted t", "") == (
        decision.verdict, decision.estimate, decision.threshold, decision.n, decision.trials, decision.method, decision.reason,
    )  # fmt: skip
    assert decision.low is not None and decision.high is not None and decision.detectable is not None
    assert (-0.0171, 0.0171, 0.0244) == pytest.approx((decision.low, decision.high, decision.detectable), abs=1e-4)
    assert decision.mcnemar is None


@pytest.mark.parametrize("trials", [(1.0,), (1.0, 1.0)])
def test_no_difference_in_a_small_suite_is_no_pass(trials: tuple[float, ...]) -> None:
    """Twenty scenarios of which none changed: without variation, and still INCONCLUSIVE."""
    decision = compare(run(*[trials] * 20), run(*[trials] * 20), 0.05)

    assert ("INCONCLUSIVE", 0.0) == (decision.verdict, decision.estimate)
    assert decision.low is not None and decision.low < -0.1


def test_one_binary_trial_each() -> None:
    """Tango's interval in the score's unit, and McNemar's p; a drop of 30 in 100 fails."""
    new, base = run(*[(0.0,)] * 35 + [(1.0,)] * 65), run(*[(1.0,)] * 30 + [(0.0,)] * 10 + [(1.0,)] * 60)
    decision = compare(new, base, 0.05)

    assert ("FAIL", "tango") == (decision.verdict, decision.method)
    assert -0.25 == pytest.approx(decision.estimate)
    assert decision.mcnemar is not None and decision.mcnemar < 1e-5
    assert "adjusted t" == compare(run((0.5,), (1.0,)), run((1.0,), (1.0,)), 0.05).method


def test_lower_may_be_better() -> None:
    """An error rate that doubles fails where a score that doubles passes."""
    new, base = run(*[(1.0, 1.0)] * 60 + [(0.0, 0.0)] * 40), run(*[(1.0, 1.0)] * 10 + [(0.0, 0.0)] * 90)

    assert "FAIL" == compare(new, base, 0.05, higher_is_better=False).verdict
    assert 0.05 == compare(new, base, 0.05, higher_is_better=False).threshold
    assert "PASS" == compare(new, base, 0.05).verdict


def test_clusters_widen_the_interval() -> None:
    """Scenarios that fall and rise together are worth fewer: the same scores pass alone and not in clusters."""
    scores = [(1.0, 0.5) if i % 20 < 10 else (0.5, 1.0) for i in range(400)]
    alone, clustered = (compare(run(*scores, clusters=count), run(*scores, clusters=count), 0.05) for count in (0, 20))

    assert ("PASS", "INCONCLUSIVE", "clustered adjusted t") == (alone.verdict, clustered.verdict, clustered.method)


@pytest.mark.parametrize(
    ("scenarios", "clusters", "reason"),
    [
        (0, 0, "0 scenarios to go by; it takes 2 at least"),
        (1, 0, "1 scenarios to go by; it takes 2 at least"),
        (100, 4, "100 scenarios in 4 clusters, worth 4 of equal size; it takes 10 at least"),
    ],
)
def test_too_little_decides_nothing(scenarios: int, clusters: int, reason: str) -> None:
    """However good the scores are; the reason is in words, and there is no interval that looks like one."""
    perfect, awful = run(*[(1.0, 1.0)] * scenarios, clusters=clusters), run(*[(0.0, 0.0)] * scenarios, clusters=clusters)
    for decision in (compare(perfect, awful, 0.05), against_limit(perfect, 0.1)):
        assert ("INCONCLUSIVE", reason, None, None) == (decision.verdict, decision.reason, decision.low, decision.detectable)


def test_values_without_limits() -> None:
    """Costs are bootstrapped, from 80 scenarios on, and values that do not vary bound nothing."""
    base = run(*[(float(i % 7), float(i % 3)) for i in range(100)])
    new = run(*[(float(i % 7) + 2.0 + i % 2, float(i % 3) + 2.0) for i in range(100)])
    decision = compare(new, base, 1.0, limits=None, higher_is_better=False)

    assert ("FAIL", "percentile-t", 2.25) == (decision.verdict, decision.method, decision.estimate)
    assert decision == compare(new, base, 1.0, limits=None, higher_is_better=False), "the same seed, the same interval"
    assert "the values do not vary" in compare(base, base, 1.0, limits=None).reason
    assert "it takes 80 at least where values have no limits" in compare(run((1.0,), (2.0,)), run((2.0,), (1.0,)), 1.0, limits=None).reason


def test_limits_of_a_mean() -> None:
    """`tsq.mean >= 0.80`: far above passes, far below fails, and a perfect small suite proves less than it seems to."""
    good, bad = run(*[(1.0,)] * 95 + [(0.0,)] * 5), run(*[(1.0,)] * 60 + [(0.0,)] * 40)

    assert ["PASS", "FAIL"] == [against_limit(each, 0.8).verdict for each in (good, bad)]
    assert "INCONCLUSIVE" == against_limit(run(*[(1.0,)] * 10), 0.8).verdict
    assert ["FAIL", "PASS"] == [against_limit(each, 0.8, higher_is_better=False).verdict for each in (good, bad)]
    assert 0.6 == pytest.approx(against_limit(bad, 0.8).estimate)
    assert 1 == against_limit({**good, "lost": Sample("same", ())}, 0.8).missing.unmeasured


@pytest.mark.parametrize(
    ("score", "margin", "confidence", "message"),
    [
        (math.nan, 0.05, 0.95, "nan is not a score"),
        (1.5, 0.05, 0.95, "a score of 1.5 is outside its limits, 0 to 1"),
        (0.5, -0.05, 0.95, "a margin is how much worse is still accepted, 0 or more, not -0.05"),
        (0.5, math.inf, 0.95, "not inf"),
        (0.5, 0.05, 95, "a confidence is at least 0.9 and less than 1, such as 0.95, not 95"),
    ],
)
def test_mistakes_are_refused(score: float, margin: float, confidence: float, message: str) -> None:
    """A number that cannot be right raises instead of turning into a verdict."""
    with pytest.raises(ValueError, match=message):
        compare(run((score,), (0.5,)), run((0.5,), (0.5,)), margin, confidence=confidence)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(*[st.lists(st.floats(0, 1), min_size=1, max_size=3)] * 2), min_size=2, max_size=12), st.floats(0, 1))
def test_properties_of_comparisons(scores: list[tuple[list[float], list[float]]], margin: float) -> None:
    """The order of scenarios does not matter, a larger margin never turns a PASS away, and the estimate is in its interval."""
    new, base = run(*(tuple(a) for a, _ in scores)), run(*(tuple(b) for _, b in scores))
    decision = compare(new, base, margin)
    turned = compare(dict(reversed(new.items())), base, margin)

    assert decision.low is not None and decision.high is not None and decision.estimate is not None
    assert decision.low - 1e-9 <= decision.estimate <= decision.high + 1e-9
    assert (decision.low, decision.high) == pytest.approx((turned.low, turned.high))
    assert decision.verdict != "PASS" or compare(new, base, margin + 0.1).verdict == "PASS"


def test_importing_the_gate_loads_no_numbers() -> None:
    """A worker, and a session without a gate, pay for no numpy."""
    code = (
        "import sys; from pytest_agentbench.gate import binary, bootstrap, bounded, latency, means, multiple, paired, power;"
        "print(*sys.modules.keys() & {'numpy', 'scipy'})"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "" == found.stdout.strip()
