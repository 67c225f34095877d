"""Verdicts on two runs: the method, the counts, and that too little data never leads to PASS."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_agentbench.stats.decisions import MissingScenarios, judge
from pytest_agentbench.stats.intervals import NO_INTERVAL
from pytest_agentbench.stats.paired import ScenarioSample, against_limit, compare, pair, varying_scenarios
from pytest_agentbench.stats.quantiles import binomial_at_most, student_t_quantile


def run(*scores: tuple[float, ...], clusters: int = 0) -> dict[str, ScenarioSample]:
    """Returns a run with these trials of scenarios 0, 1, ..., in this many clusters."""
    return {str(i): ScenarioSample("same", trials, str(i % clusters) if clusters else None) for i, trials in enumerate(scores)}


def test_pairs_are_joined_by_id_and_content() -> None:
    """Every scenario without a partner is counted by reason."""
    new = {
        "both": ScenarioSample("a", (1.0,)),
        "new": ScenarioSample("a", (1.0,)),
        "changed": ScenarioSample("b", (1.0,)),
        "lost": ScenarioSample("a", ()),
    }
    base = {
        "both": ScenarioSample("a", (0.0, 1.0)),
        "changed": ScenarioSample("a", (1.0,)),
        "lost": ScenarioSample("a", (1.0,)),
        "old": ScenarioSample("a", (1.0,)),
    }
    pairs, missing = pair(new, base)

    assert ["both"] == [*pairs]
    assert 0.5 == pairs["both"].difference
    assert MissingScenarios(only_new=1, only_base=1, changed=1, unmeasured=1) == missing
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
    """The whole interval has to lie beyond the threshold. An end that equals the threshold is not beyond it."""
    assert verdict == judge(low, high, -0.05)
    assert mirrored == judge(low, high, 0.05, higher_is_better=False)


def test_the_fields_of_a_comparison() -> None:
    """A decision has question, estimate, interval, threshold, scenarios, trials, method and power."""
    decision = compare(run(*[(1.0, 0.0)] * 200), run(*[(1.0, 0.0, 1.0, 0.0)] * 200), 0.05, of="population")

    assert ("PASS", "population", 0.0, -0.05, 200, (400, 800), "adjusted t", "") == (
        decision.verdict, decision.of, decision.estimate, decision.threshold, decision.n, decision.trials, decision.method, decision.reason,
    )  # fmt: skip
    assert (-0.0171, 0.0171, 0.0171) == pytest.approx((decision.low, decision.high, decision.floor), abs=1e-4)


def test_trials_within_scenarios_decide_about_a_suite() -> None:
    """A decision about a suite uses the variance between trials: s^2 = 1/2 for two and 1/3 for four, so V = (1/2 / 2 + 1/3 / 4) / 200.

    Its degrees of freedom are Welch's, whatever the variance between scenarios is.
    """
    decision = compare(run(*[(1.0, 0.0)] * 200), run(*[(1.0, 0.0, 1.0, 0.0)] * 200), 0.1)
    error = math.sqrt((0.5 / 2 + 1 / 3 / 4) / 200)
    degrees = (0.5 / 2 + 1 / 12) ** 2 * 200 / (0.25**2 / 3 + (1 / 12) ** 2 / 5) - 2
    reach = student_t_quantile(0.975, degrees) * error

    assert ("PASS", "suite", "within-scenario t") == (decision.verdict, decision.of, decision.method)
    assert decision.high == pytest.approx(reach, abs=1e-9)
    assert decision.passable == pytest.approx(reach + 0.8416 * error, abs=1e-4)


@pytest.mark.parametrize("trials", [(1.0,), (1.0, 1.0)])
def test_a_small_suite_without_a_difference_is_inconclusive(trials: tuple[float, ...]) -> None:
    """Twenty unchanged scenarios are INCONCLUSIVE although nothing varies. The reason has the number of trials that are needed."""
    decision = compare(run(*[trials] * 20), run(*[trials] * 20), 0.05)

    assert ("INCONCLUSIVE", 0.0) == (decision.verdict, decision.estimate)
    assert decision.low is not None and decision.low < -0.08
    assert decision.reason.startswith(f"no score differs in {20 * len(trials)} rollouts, which only rules out drops above 0.")
    assert decision.reason.endswith("the margin is 0.05: set `deterministic: true` in suite.yaml if trials never differ")


def test_a_hundred_unchanged_scenarios_pass_the_usual_rule() -> None:
    """A hundred unchanged scenarios pass a margin of 0.05, with one trial or three, also for the population, but not a margin of 0.03."""
    for trials in (1, 3):
        same = run(*[(0.7,) * trials] * 60, *[(1.0,) * trials] * 40)

        assert ["PASS", "PASS", "INCONCLUSIVE"] == [
            compare(same, same, margin, of=of).verdict for margin, of in ((0.05, "suite"), (0.05, "population"), (0.03, "population"))
        ]
        assert ("PASS" if trials == 3 else "INCONCLUSIVE") == compare(same, same, 0.03).verdict


def test_one_binary_trial_each() -> None:
    """For one trial that passes or fails, Tango's interval decides.

    A drop of 30 in 100 fails, and with a margin of 0 McNemar's exact test agrees.
    """
    new, base = run(*[(0.0,)] * 35 + [(1.0,)] * 65), run(*[(1.0,)] * 30 + [(0.0,)] * 10 + [(1.0,)] * 60)
    decision = compare(new, base, 0.05)

    assert ("FAIL", "tango", None) == (decision.verdict, decision.method, decision.p_worse)
    assert -0.25 == pytest.approx(decision.estimate)
    assert compare(new, base, 0.0).p_worse == pytest.approx(binomial_at_most(5, 35, 0.5))
    assert "paired t" == compare(run((0.5,), (1.0,)), run((1.0,), (1.0,)), 0.05).method


def test_a_quiet_suite_shows_small_drops() -> None:
    """Scores vary by 0.02, and every scenario is worse by 0.03. With one trial or three, the verdict is FAIL if the margin is 0."""
    random = np.random.default_rng(3)
    for trials in (1, 3):
        before, after = (run(*map(tuple, random.normal(mean, 0.02, (40, trials)).tolist())) for mean in (0.6, 0.57))

        assert "FAIL" == compare(after, before, 0.0).verdict
        assert "INCONCLUSIVE" == compare(before, after, 0.0, of="population").verdict, "better is not proved to a population"


def test_one_scenario_that_broke_is_found_without_a_variance() -> None:
    """One of 100 scenarios broke in a suite whose trials never differ.

    A permutation test shows that its five failed trials cannot be chance.
    """
    base = run(*[(1.0,) * 5] * 100)
    decision = compare(run((0.0,) * 5, *[(1.0,) * 5] * 99), base, 0.0)

    assert ("FAIL", "paired t") == (decision.verdict, decision.method)
    assert decision.p_worse == pytest.approx(1 / 252, rel=0.5)
    assert "INCONCLUSIVE" == compare(base, base, 0.0).verdict


def test_few_scenarios_that_vary_do_not_make_a_variance() -> None:
    """With four varying scenarios, the variance between scenarios is used. With five, the variance within scenarios is used."""
    loud, still = [(0.0, 0.0, 1.0)], [(1.0, 1.0, 1.0)]
    methods = [compare(run(*loud * count, *still * 20), run(*still * (20 + count)), 0.05).method for count in (4, 5)]

    assert ["paired t", "within-scenario t"] == methods


def test_lost_trials_are_the_worst_for_pass_and_nothing_for_fail() -> None:
    """A run does not pass by losing trials: the lower bound treats lost trials as 0 in the new run and as 1 in the baseline."""
    whole = run(*[(1.0, 1.0, 1.0)] * 100)
    two = {**whole, **{str(i): ScenarioSample("same", (1.0,), lost=2) for i in range(2)}, "2": ScenarioSample("same", (), lost=3)}
    zeros = {**whole, **{str(i): ScenarioSample("same", (1.0, 0.0, 0.0)) for i in range(2)}, "2": ScenarioSample("same", (0.0, 0.0, 0.0))}

    assert ("PASS", "INCONCLUSIVE") == (compare(whole, whole, 0.05).verdict, compare(two, whole, 0.05).verdict)
    assert compare(zeros, whole, 0.05).low == compare(two, whole, 0.05).low
    assert compare(two, whole, 0.05).high == pytest.approx(compare(whole, whole, 0.05).high, abs=1e-3)
    assert ("PASS", "INCONCLUSIVE") == (against_limit(whole, 0.98).verdict, against_limit(two, 0.98).verdict)
    half = run(*[(0.0, 0.5)] * 100)
    assert "PASS" == compare(half, half, 0.12).verdict
    lost = {name: ScenarioSample("same", (0.0, 0.5), lost=1) for name in half}
    assert "INCONCLUSIVE" == compare(half, lost, 0.12).verdict, "what the baseline lost may have been better"


def test_a_deterministic_suite_is_compared_as_a_fact() -> None:
    """A deterministic suite is decided without an interval, with `unseen`. If trials differ, it is treated like any other."""
    base = run(*[(1.0, 1.0)] * 100)
    same, less = (compare(run(*[(score, score)] * 100), base, 0.001, deterministic=True) for score in (1.0, 0.99))

    assert ("PASS", "deterministic", None) == (same.verdict, same.method, same.low)
    assert same.unseen == pytest.approx(1 - 0.025 ** (1 / 200))
    assert "FAIL" == less.verdict
    differing = run((1.0, 0.5), *[(1.0, 1.0)] * 99)
    assert ["0"] == varying_scenarios(pair(differing, base)[0])
    assert "deterministic" != compare(differing, base, 0.001, deterministic=True).method
    assert "adjusted t" == compare(base, base, 0.001, deterministic=True, of="population").method, "scenarios like these are others"


def test_lower_may_be_better() -> None:
    """If lower is better, a higher score fails. The same change passes if higher is better."""
    new, base = run(*[(1.0, 1.0)] * 60 + [(0.0, 0.0)] * 40), run(*[(1.0, 1.0)] * 10 + [(0.0, 0.0)] * 90)

    assert "FAIL" == compare(new, base, 0.05, higher_is_better=False).verdict
    assert 0.05 == compare(new, base, 0.05, higher_is_better=False).threshold
    assert "PASS" == compare(new, base, 0.05).verdict


def test_clusters_widen_the_interval() -> None:
    """Clustered scenarios have less information. For the population, the same scores pass without clusters but not with them."""
    scores = [(1.0, 0.5) if i % 20 < 10 else (0.5, 1.0) for i in range(400)]
    alone, clustered = (compare(each, each, 0.05, of="population") for each in (run(*scores, clusters=count) for count in (0, 20)))

    assert ("PASS", "INCONCLUSIVE", "clustered adjusted t") == (alone.verdict, clustered.verdict, clustered.method)
    assert compare(run(*scores), run(*scores), 0.05) == compare(run(*scores, clusters=20), run(*scores, clusters=20), 0.05), "of suite"


def test_clusters_that_broke_are_found() -> None:
    """If 8 of 25 clusters with 100 scenarios broke, the verdict is FAIL by the cluster-robust interval, which has no imaginary
    scenarios.
    """
    base = run(*[(1.0, 1.0, 0.0)] * 100, clusters=25)
    broke = {name: ScenarioSample("same", (0.0, 0.0, 0.0), each.cluster) if int(name) % 25 < 8 else each for name, each in base.items()}
    decision = compare(broke, base, 0.05, of="population")

    assert ("FAIL", "clustered adjusted t") == (decision.verdict, decision.method)
    assert decision.estimate == pytest.approx(-0.32 * 2 / 3)


@pytest.mark.parametrize(
    ("scenarios", "clusters", "reason"),
    [
        (0, 0, "0 scenarios were measured, but 2 are needed; run more scenarios"),
        (1, 0, "1 scenario was measured, but 2 are needed; run more scenarios"),
        (
            100,
            4,
            (
                "the 100 scenarios are in 4 clusters, which count as 4 independent scenarios, but 10 are needed; "
                "add scenarios in other clusters, or ask about the suite instead of the population"
            ),
        ),
    ],
)
def test_too_little_decides_nothing(scenarios: int, clusters: int, reason: str) -> None:
    """Too few scenarios decide nothing, however good the scores are. There is a reason and no interval."""
    perfect, awful = run(*[(1.0, 1.0)] * scenarios, clusters=clusters), run(*[(0.0, 0.0)] * scenarios, clusters=clusters)
    for decision in (compare(perfect, awful, 0.05, of="population"), against_limit(perfect, 0.1, of="population")):
        assert ("INCONCLUSIVE", reason, None, None) == (decision.verdict, decision.reason, decision.low, decision.detectable)


def test_values_without_limits() -> None:
    """Costs have a bootstrap interval from 80 scenarios on, and none if the values do not vary."""
    base = run(*[(float(i % 7), float(i % 3)) for i in range(100)])
    new = run(*[(float(i % 7) + 2.0 + i % 2, float(i % 3) + 2.0) for i in range(100)])
    decision = compare(new, base, 1.0, limits=None, higher_is_better=False)

    assert ("FAIL", "percentile-t", 2.25) == (decision.verdict, decision.method, decision.estimate)
    assert decision == compare(new, base, 1.0, limits=None, higher_is_better=False), "the same seed, the same interval"
    assert NO_INTERVAL == compare(base, base, 1.0, limits=None).reason
    one_odd = run(*[(float(i % 7) + (i == 0), float(i % 3)) for i in range(100)])
    hardly = compare(one_odd, base, 1.0, limits=None, higher_is_better=False)
    assert ("INCONCLUSIVE", None, None) == (hardly.verdict, hardly.high, hardly.passable), "no number that JSON cannot say"
    assert NO_INTERVAL == hardly.reason
    assert "a score without limits needs 80" in compare(run((1.0,), (2.0,)), run((2.0,), (1.0,)), 1.0, limits=None).reason


def test_limits_of_a_mean() -> None:
    """For `tsq.mean >= 0.80`, a mean far above passes and one far below fails. A perfect small suite is inconclusive."""
    good, bad = run(*[(1.0,)] * 95 + [(0.0,)] * 5), run(*[(1.0,)] * 60 + [(0.0,)] * 40)

    assert ["PASS", "FAIL"] == [against_limit(each, 0.8).verdict for each in (good, bad)]
    assert "INCONCLUSIVE" == against_limit(run(*[(1.0,)] * 10), 0.8).verdict
    assert ["FAIL", "PASS"] == [against_limit(each, 0.8, higher_is_better=False).verdict for each in (good, bad)]
    assert 0.6 == pytest.approx(against_limit(bad, 0.8).estimate)
    assert 1 == against_limit({**good, "lost": ScenarioSample("same", ())}, 0.8).missing.unmeasured


@pytest.mark.parametrize(
    ("score", "margin", "confidence", "message"),
    [
        (math.nan, 0.05, 0.95, "score nan must be finite"),
        (1.5, 0.05, 0.95, "score 1.5 must be from 0 to 1"),
        (0.5, -0.05, 0.95, "margin -0.05 must be 0 or more, because it is the accepted loss"),
        (0.5, math.inf, 0.95, "margin inf must be"),
        (0.5, 0.05, 95, "confidence 95 must be at least 0.9 and less than 1, such as 0.95"),
    ],
)
def test_mistakes_are_refused(score: float, margin: float, confidence: float, message: str) -> None:
    """An invalid number raises instead of leading to a verdict."""
    with pytest.raises(ValueError, match=message):
        compare(run((score,), (0.5,)), run((0.5,), (0.5,)), margin, confidence=confidence)


@settings(max_examples=60)
@given(st.lists(st.tuples(*[st.lists(st.floats(0, 1), min_size=1, max_size=3)] * 2), min_size=2, max_size=12), st.floats(0, 1))
@example([([0.0], [0.0]), ([0.0, 0.0], [0.0, 1e-81])], 0.0)  # the square of their variance is 0
def test_properties_of_comparisons(scores: list[tuple[list[float], list[float]]], margin: float) -> None:
    """The order of scenarios does not matter, a larger margin never turns a PASS into another verdict, and the interval contains the
    estimate.
    """
    new, base = run(*(tuple(a) for a, _ in scores)), run(*(tuple(b) for _, b in scores))
    decision = compare(new, base, margin)
    turned = compare(dict(reversed(new.items())), base, margin)

    assert decision.low is not None and decision.high is not None and decision.estimate is not None
    assert decision.low - 1e-9 <= decision.estimate <= decision.high + 1e-9
    assert (decision.low, decision.high) == pytest.approx((turned.low, turned.high))
    assert decision.verdict != "PASS" or compare(new, base, margin + 0.1).verdict == "PASS"


def test_importing_the_gate_loads_no_numbers() -> None:
    """Workers and sessions without a gate do not import numpy."""
    code = (
        "import sys; from pytest_agentbench.stats import calibration, decisions, intervals, latency, mean_intervals, means;"
        "from pytest_agentbench.stats import paired, pass_rates, power, quantiles, series;"
        "print(*sys.modules.keys() & {'numpy', 'scipy'})"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "" == found.stdout.strip()
