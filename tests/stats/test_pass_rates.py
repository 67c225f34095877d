"""pass@k and pass^k: estimates by enumeration, intervals by simulation, and rules about them."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.verdicts.benchmark import RISK, within
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.gate.rules import Rule, SuiteRule, parse_rule
from pytest_agentbench.gate.usable_numbers import missing_scores
from pytest_agentbench.gate.verdict import judge_rules
from pytest_agentbench.stats.decisions import Decision
from pytest_agentbench.stats.means import suite_interval
from pytest_agentbench.stats.paired import ScenarioSample
from pytest_agentbench.stats.pass_rates import PassRate, PassThreshold, against_share, pass_all, pass_counts
from tests.gate.evidences import HASHES, evidence, trial
from tests.made_runs import SCALES

BAR = PassThreshold("tsq", 0.5)


@given(trials=st.lists(st.booleans(), min_size=1, max_size=8), k=st.integers(1, 8))
def test_pass_rates_are_shares_of_all_choices(trials: list[bool], k: int) -> None:
    """pass@k is the share of choices of k trials in which one passes, pass^k the share in which all pass.

    With too few trials, neither exists.
    """
    ways = [*combinations(trials, k)]
    at = sum(any(way) for way in ways) / len(ways) if ways else None
    every = sum(all(way) for way in ways) / len(ways) if ways else None
    estimate = PassRate(every=False, k=k).estimate(sum(trials), len(trials))

    assert at == (pytest.approx(estimate.value) if estimate else None)
    assert every == pytest.approx(pass_all(sum(trials), len(trials), k))


def test_impossible_counts_are_refused() -> None:
    """More passes than trials are refused."""
    with pytest.raises(ValueError, match=r"passed trials \(4\) must be from 0 to that of all trials \(3\)"):
        pass_all(4, 3, 1)


@pytest.mark.parametrize("every", [True, False])
@pytest.mark.parametrize(("trials", "k"), [(4, 1), (4, 2), (6, 3), (9, 4)])
def test_the_variance_is_without_bias(trials: int, k: int, every: bool) -> None:
    """For 2k trials or more, the mean of the estimated variance is the true variance. With fewer trials there is no estimate."""
    rate = PassRate(every, k)
    for p in (0.1, 0.5, 0.8, 1.0):
        weights = [float(len([*combinations(range(trials), c)])) * p**c * (1 - p) ** (trials - c) for c in range(trials + 1)]
        estimates = [rate.estimate(c, trials) for c in range(trials + 1)]
        values = np.array([each.value for each in estimates if each])
        variances = np.array([each.variance for each in estimates if each])

        assert (p**k if every else 1 - (1 - p) ** k) == pytest.approx(np.dot(weights, values))
        assert np.dot(weights, (values - np.dot(weights, values)) ** 2) == pytest.approx(np.dot(weights, variances))
    fewer = rate.estimate(1, 2 * k - 1)
    assert fewer is not None
    assert (fewer.variance is None) or k == 1
    assert rate.estimate(0, k - 1) is None


@pytest.mark.parametrize("seed", range(10))
def test_pass_rates_of_one_trial(seed: int) -> None:
    """pass^1 equals pass@1, and has the interval of a mean of scores of 0 and 1, also with unequal numbers of trials."""
    random = np.random.default_rng(seed)
    trials = random.integers(1, 6, 12)
    scenarios = {str(at): (int(random.integers(0, n + 1)), int(n)) for at, n in enumerate(trials)}
    scores = [[1.0] * passed + [0.0] * (n - passed) for passed, n in scenarios.values()]
    mean = suite_interval(scores)

    for every in (True, False):
        interval = PassRate(every, 1).interval(scenarios, {})
        assert (mean.mean, mean.low, mean.high) == pytest.approx((interval.mean, interval.low, interval.high))
        assert mean.method == interval.method


RATES = {
    "beta": np.random.default_rng(1).beta(2.4, 0.6, 100),
    "alike": np.full(100, 0.9),
    "sure": np.where(np.arange(100) < 95, 1.0, 0.5),
    "two kinds": np.where(np.arange(100) % 2, 0.95, 0.4),
}
RUNS = 300


@pytest.mark.parametrize("n", [20, 100])
@pytest.mark.parametrize(("trials", "k"), [(3, 3), (3, 2), (4, 2), (10, 3)])
def test_each_side_misses_at_most_one_time_in_twenty(n: int, trials: int, k: int) -> None:
    """The intervals of pass^k and pass@k cover the true value for equal, different and mostly perfect scenarios."""
    for rates in RATES.values():
        ours = rates[:: len(rates) // n]
        outcomes = np.random.default_rng(n + trials + k).binomial(trials, ours, (RUNS, n))
        for rate, truth in ((PassRate(True, k), ours**k), (PassRate(False, k), 1 - (1 - ours) ** k)):
            found = [rate.interval({str(at): (int(passed), trials) for at, passed in enumerate(run)}, {}) for run in outcomes]
            above = sum((each.low or 0.0) > truth.mean() + 1e-9 for each in found) / RUNS
            below = sum((each.high or 0.0) < truth.mean() - 1e-9 for each in found) / RUNS

            assert above <= within(RISK, RUNS)
            assert below <= within(RISK, RUNS)


def test_twice_as_many_trials_make_the_interval_narrow() -> None:
    """With 2k trials, the interval does not include the variance between scenarios, half of which never pass and half always."""
    halves = [0] * 50 + [1] * 50
    wide, narrow = (PassRate(True, 3).interval({str(at): (n * each, n) for at, each in enumerate(halves)}, {}) for n in (5, 6))

    assert wide.mean == narrow.mean == 0.5
    assert (wide.high or 0) - (wide.low or 0) > 0.15
    few = [(4 if at % 2 else 3, 6) if at < 30 else (6 * each, 6) for at, each in enumerate(halves)]
    inside = PassRate(True, 3).interval(dict(zip(map(str, range(100)), few, strict=True)), {})
    assert "within-scenario t" == inside.method
    assert (inside.high or 0) - (inside.low or 0) < 0.1


def test_clusters_count_for_the_population() -> None:
    """For the population, the scenarios of one cluster are one observation. For the suite, each scenario is an observation."""
    scenarios = {str(at): (3 * (at < 60), 3) for at in range(100)}
    clusters: dict[str, str | None] = {name: str(int(name) // 20) for name in scenarios}
    suite, population = (PassRate(True, 3).interval(scenarios, clusters, of=of) for of in ("suite", "population"))

    assert (100, 5) == (suite.clusters, population.clusters)
    assert (population.high or 0) - (population.low or 0) > 2 * ((suite.high or 0) - (suite.low or 0))


def test_which_trials_pass() -> None:
    """A trial passes if it reaches the threshold or, if lower is better, stays below it. An agent error does not pass."""
    assert {"a": (2, 3), "b": (0, 1)} == pass_counts({"a": [0.5, 1.0, 0.4]}, {"b": 1}, BAR)
    assert {"a": (1, 3)} == pass_counts({"a": [0.0, 1.0]}, {"a": 1}, PassThreshold("repeated", 0.0, falling=True))


def parsed(text: str, *, passes: bool = True) -> Rule:
    return parse_rule(text, ("tsq", "repeated"), SCALES, passes=passes)


def decided(text: str, trials: list[Any], **facts: Any) -> Decision:
    return judge_rules([SuiteRule("shop", parsed(text), SCALES["tsq"], any_part=True, pass_threshold=BAR)], evidence(trials, **facts), {})[
        0
    ].decision


def rollouts(passed: int, n: int = 40, trials: int = 3) -> list[Any]:
    """Returns trials of n scenarios. The first `passed` scenarios pass in all trials, the others in none."""
    return [trial(at, 0.5 if at < passed else 0.49, number=k) for at in range(n) for k in range(trials)]


@pytest.mark.parametrize(
    ("text", "name", "limit", "of"),
    [
        ("pass^3 >= 0.7", "pass^3", 0.7, "suite"),
        ("pass@10>=95%", "pass@10", 0.95, "suite"),
        ("pass^2 >= 0.5 of population", "pass^2", 0.5, "population"),
    ],
)
def test_rules(text: str, name: str, limit: float, of: str) -> None:
    """A rule has a pass rate and a limit, and is about the suite unless it names the population."""
    rule = parsed(text)

    assert ("passes", name, name, of) == (rule.kind, rule.metric, rule.pass_rate.name, rule.of)
    assert limit == pytest.approx(rule.limit)


@pytest.mark.parametrize(
    ("text", "passes", "sentence"),
    [
        ("pass^3 >= 0.7", False, r"pass rates need a threshold for tsq; add one to suite.yaml, for example `thresholds: \{tsq: 0.5\}`"),
        ("pass^0 >= 0.7", True, r"pass\^0 counts no trials; write their number, as in pass\^3"),
        ("pass^3 <= 0.7", True, r"higher pass\^3 is better, so use >="),
        ("pass^3 >= 70", True, "the limit must be from 0 to 1, or 0% to 100%"),
        ("pass^3 >= -0.05 vs baseline", True, "this metric cannot be compared with a baseline; leave out `vs baseline`"),
        ("pass^k >= 0.7", True, "must be METRIC >= LIMIT"),
    ],
)
def test_invalid_rules(text: str, passes: bool, sentence: str) -> None:
    """The error about an invalid rule says what is wrong, and what would work."""
    with pytest.raises(ConfigError, match=sentence) as error:
        parsed(text, passes=passes)

    assert repr(text) in str(error.value)


@pytest.mark.parametrize(
    ("text", "passed", "verdict"),
    [
        ("pass^3 >= 0.7", 40, "PASS"),
        ("pass^3 >= 0.7", 30, "INCONCLUSIVE"),
        ("pass^3 >= 0.7", 10, "FAIL"),
        ("pass@3 >= 0.7", 10, "FAIL"),
        ("pass^1 >= 0.7", 40, "PASS"),
        ("pass^3 >= 0.7 of population", 40, "PASS"),
        ("pass^3 >= 0.7 of population", 10, "FAIL"),
    ],
)
def test_verdicts(text: str, passed: int, verdict: str) -> None:
    """The interval of the mean over scenarios decides the verdict."""
    assert verdict == decided(text, rollouts(passed)).verdict


def test_all_trials_or_one_trial() -> None:
    """Scenarios that pass in two of three trials meet pass@3 and fail pass^3."""
    trials = [trial(at, 1.0 if k else 0.0, number=k) for at in range(40) for k in range(3)]

    assert ("PASS", 1.0) == ((at := decided("pass@3 >= 0.7", trials)).verdict, at.estimate)
    assert ("FAIL", 0.0) == ((every := decided("pass^3 >= 0.7", trials)).verdict, every.estimate)


@pytest.mark.parametrize("text", ["pass^3 >= 0.7", "tsq.mean >= 0.7"])
def test_perfect_results_have_no_detectable_distance(text: str) -> None:
    """If all values are the best possible, no detectable distance is reported, not even 0."""
    perfect = decided(text, [trial(at, 1.0, number=k) for at in range(40) for k in range(3)])
    less = decided(text, [trial(at, float(at > 4), number=k) for at in range(40) for k in range(3)])

    assert (None, "PASS") == (perfect.detectable, perfect.verdict)
    assert less.detectable is not None and less.detectable > 0.05


def test_too_few_trials() -> None:
    """If there are too few trials, the reason has the number that is needed."""
    found = decided("pass^3 >= 0.7", rollouts(40, trials=2))

    assert ("INCONCLUSIVE", None) == (found.verdict, found.estimate)
    assert "pass^3 needs 3 trials of each scenario: --agentbench-trials=3" in found.reason


def test_an_agents_error_does_not_pass() -> None:
    """An agent error does not count as a pass. If it were left out, a suite would get better the more often its agent fails."""
    trials = [*rollouts(40, trials=2), *(trial(at, None, number=3, status="agent_error") for at in range(40))]

    assert ("FAIL", 0.0) == ((found := decided("pass^3 >= 0.7", trials)).verdict, found.estimate)


def test_lost_trials_count_as_failed_for_pass() -> None:
    """One trial of each of 12 scenarios was lost.

    If these trials can change the verdict, it is not PASS although all measured trials passed.
    """
    trials = [trial(at, 1.0, number=k, status="ok") for at in range(100) for k in range(3)]
    lost = [
        each if int(each.scenario) > 12 or each.trial else trial(each.scenario, None, number=0, status="infra_error") for each in trials
    ]
    run = {str(at): ScenarioSample("", (1.0, 1.0), lost=1) if at < 12 else ScenarioSample("", (1.0, 1.0, 1.0)) for at in range(100)}

    assert "PASS" == decided("pass^3 >= 0.9", trials).verdict
    assert "INCONCLUSIVE" == decided("pass^3 >= 0.9", lost).verdict
    found = against_share(run, PassRate(True, 3), 0.9)
    assert ("INCONCLUSIVE", 1.0, 88) == (found.verdict, found.estimate, found.n)


def test_a_scorer_that_failed_decides_nothing() -> None:
    """Rollouts whose scorer failed neither pass nor fail, and the reason says so."""
    trials = [*rollouts(40), trial(0, None, number=9, unscored=("tsq",), content=HASHES)]

    found = decided("pass^3 >= 0.7", trials)

    assert ("INCONCLUSIVE", missing_scores(1, "tsq")) == (found.verdict, found.reason)
