"""Comparison of latencies of two runs by moving blocks in time order, and cases that are undecided."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from pytest_agentbench.stats.decisions import MissingScenarios
from pytest_agentbench.stats.latency import RolloutLatencies, compare_latency, fewest_values, latency_limit
from pytest_agentbench.stats.mean_intervals import Clusters, percentile_t


def run(n: int, scale: float = 1.0, seed: int = 1, trials: int = 1) -> list[RolloutLatencies]:
    """Returns rollouts of n scenarios with different prompt lengths, with five calls each, in milliseconds."""
    generator = random.Random(seed)
    return [
        RolloutLatencies(
            str(i),
            trial,
            trial * n + i,
            tuple(scale * (100 + random.Random(i).randrange(97)) * generator.lognormvariate(0, 0.1) for _ in range(5)),
        )
        for trial in range(trials)
        for i in range(n)
    ]


def drifting(n: int, seed: int, likeness: float = 0.97) -> list[RolloutLatencies]:
    """Returns rollouts of n scenarios with one call each, under slowly changing load."""
    generator, load, timings = random.Random(seed), 0.0, []
    for number in range(n):
        load = likeness * load + math.sqrt(1 - likeness**2) * generator.gauss(0, 0.3)
        timings.append(RolloutLatencies(str(number), 1, number, (100 * math.exp(load),)))
    return timings


def test_an_unchanged_run_passes_and_a_slow_one_fails() -> None:
    """A run with the same distribution passes a margin of 10 %. A run that is slower by half fails."""
    base = run(200)
    same, slow = compare_latency(run(200, seed=2), base, 50, 0.1), compare_latency(run(200, 1.5, seed=2), base, 50, 0.1)

    assert ("PASS", "FAIL") == (same.verdict, slow.verdict)
    assert slow.low is not None and slow.high is not None and slow.estimate is not None
    assert slow.low < 1.5 < slow.high and slow.estimate == pytest.approx(1.5, rel=0.05)
    assert (1.1, 200, (1000, 1000), "moving blocks of 12") == (slow.threshold, slow.n, slow.trials, slow.method)
    assert same.detectable is not None and 1 < same.detectable < 1.2
    assert slow == compare_latency(run(200, 1.5, seed=2), base, 50, 0.1)


def test_units_and_swapped_runs() -> None:
    """The ratio does not depend on the unit. If the runs are swapped, it is the reciprocal."""
    new, base = run(60, 1.3), run(60, seed=3)
    forth, back = compare_latency(new, base, 50, 0.1), compare_latency(base, new, 50, 0.1)
    new_s, base_s = ([each._replace(values=tuple(call / 1e3 for call in each.values)) for each in side] for side in (new, base))
    seconds = compare_latency(new_s, base_s, 50, 0.1)

    assert forth.low is not None and forth.high is not None
    assert (forth.low, forth.high) == pytest.approx((seconds.low, seconds.high))
    assert (1 / forth.high, 1 / forth.low) == pytest.approx((back.low, back.high))


def test_scenarios_are_paired() -> None:
    """Differences between scenarios do not count as noise. The interval is narrower than if the scenarios of the baseline are exchanged."""
    lengths = [random.Random(seed).lognormvariate(0, 1) for seed in range(150)]
    widths = []
    for theirs in (lengths, lengths[::-1]):
        new, base = (
            [each._replace(values=tuple(value * length for value in each.values)) for each, length in zip(side, own, strict=True)]
            for side, own in ((drifting(150, 1, 0.0), lengths), (drifting(150, 2, 0.0), theirs))
        )
        decision = compare_latency(new, base, 50, 0.1)
        assert decision.low is not None and decision.high is not None
        widths.append(math.log(decision.high / decision.low))

    assert widths[0] < 0.75 * widths[1]


def test_rollouts_are_kept_whole() -> None:
    """Fifty equal calls of a rollout have no more information than one."""
    few = [RolloutLatencies(str(i), 1, i, (100.0 + random.Random(i).randrange(97),)) for i in range(60)]
    many = [each._replace(values=each.values * 50) for each in few]
    one, fifty = latency_limit(few, 50, 120), latency_limit(many, 50, 120)

    assert one.low is not None and one.high is not None
    assert (one.low, one.high) == pytest.approx((fifty.low, fifty.high), rel=0.05)


def test_trials_of_a_scenario_are_not_more_scenarios() -> None:
    """For a limit, differences between scenarios are part of the error. Three equal trials have no more information than one."""
    once = [RolloutLatencies(str(i), 1, i, (100.0 + random.Random(i).randrange(97),)) for i in range(60)]
    thrice = [each._replace(trial=trial, began=each.began + 60 * trial) for trial in range(3) for each in once]
    one, three = latency_limit(once, 50, 120), latency_limit(thrice, 50, 120)

    assert one.low is not None and one.high is not None and three.low is not None and three.high is not None
    assert three.high - three.low > 0.9 * (one.high - one.low)


def test_load_that_changes_slowly_decides_nothing() -> None:
    """Correlated rollouts make few blocks, even if there are many of them. The reason says so, and what to do."""
    decision = compare_latency(drifting(300, 1), drifting(300, 2), 50, 0.1)

    assert ("INCONCLUSIVE", None) == (decision.verdict, decision.low)
    assert "rollouts that ran at about the same time have similar latencies (autocorrelation 0.9" in decision.reason
    assert "but 15 are needed; run more trials (--agentbench-trials), or compare two interleaved arms (--agentbench-ab)" in decision.reason


def test_the_time_order_counts() -> None:
    """If equal latencies are in another time order, they are not correlated, and decide. The order of the list does not matter."""
    generator = random.Random(5)
    new, base = ([each._replace(began=generator.random()) for each in drifting(300, seed)] for seed in (1, 2))
    ours, theirs = (generator.sample(drifting(300, seed), 300) for seed in (1, 2))

    assert compare_latency(new, base, 50, 0.5).low is not None
    assert compare_latency(ours, theirs, 50, 0.5).low is None


@pytest.mark.parametrize(("q", "needed"), [(50, 20), (90, 100), (95, 200), (99, 1000), (10, 100)])
def test_a_tail_needs_rollouts(q: int, needed: int) -> None:
    """A gated percentile needs ten independent rollouts beyond it. With one rollout less, nothing is decided."""
    assert needed == fewest_values(q)
    decision = compare_latency(run(needed - 1), run(needed - 1), q, 0.5)

    reason = f"p{q} needs {needed} independent rollouts, but there are {needed - 1}; run more trials (--agentbench-trials)"
    assert ("INCONCLUSIVE", reason) == (decision.verdict, decision.reason)


def test_a_tail_needs_independent_rollouts() -> None:
    """Correlated rollouts count only in part. p99 needs 1,000 independent ones: 1,500 independent rollouts suffice, 1,500 correlated ones
    do not.
    """
    alike = compare_latency(drifting(1500, 1, 0.5), drifting(1500, 2, 0.5), 99, 0.5)

    assert "PASS" == compare_latency(drifting(1500, 1, 0.0), drifting(1500, 2, 0.0), 99, 0.5).verdict
    few = "p99 needs 1000 independent rollouts, but rollouts that ran at about the same time have similar latencies (autocorrelation 0.5"
    assert alike.reason.startswith(few)


def test_a_baseline_of_more_trials_is_used_wholly() -> None:
    """Three times as many trials in the baseline make the interval narrower."""
    new = run(100)
    narrow, wide = (compare_latency(new, run(100, seed=2, trials=trials), 50, 0.1) for trials in (3, 1))

    assert (500, 1500) == narrow.trials
    assert narrow.low is not None and narrow.high is not None and wide.low is not None and wide.high is not None
    assert math.log(narrow.high / narrow.low) < math.log(wide.high / wide.low)


def test_limits_of_a_percentile() -> None:
    """A rule such as `ttft.p50 <= 500ms` passes if the latencies are far below the limit, and fails if they are far above it."""
    assert ["PASS", "INCONCLUSIVE", "FAIL"] == [latency_limit(run(100), 50, limit).verdict for limit in (500, 150, 50)]


def test_scenarios_of_one_run_are_counted() -> None:
    """A scenario without calls in one of the runs is counted as missing."""
    new = [*run(40), RolloutLatencies("new", 1, 99, (1.0,)), RolloutLatencies("silent", 1, 98, ())]
    base = [*run(40), RolloutLatencies("old", 1, 99, (1.0,)), RolloutLatencies("silent", 1, 98, (1.0,))]

    assert MissingScenarios(only_new=1, only_base=1, unmeasured=1) == compare_latency(new, base, 50, 0.1).missing


def test_nothing_measured_decides_nothing() -> None:
    """Without latencies, the reason says that there are 0 rollouts."""
    decision = latency_limit([RolloutLatencies("a", 1, 0, ())], 50, 1)
    assert "p50 needs 20 independent rollouts, but there are 0; run more trials (--agentbench-trials)" == decision.reason


@pytest.mark.parametrize(
    ("call", "q", "message"),
    [
        (0.0, 50, "latency 0.0 must be finite and greater than 0"),
        (math.inf, 50, "latency inf must be finite and greater than 0"),
        (1.0, 100, "percentile 100 must be"),
    ],
)
def test_mistakes_are_refused(call: float, q: int, message: str) -> None:
    """A latency of 0 has no logarithm and is refused."""
    with pytest.raises(ValueError, match=message):
        latency_limit([RolloutLatencies("a", 1, 0, (call,))], q, 500)


def test_percentile_t_of_symmetric_values_is_nearly_t() -> None:
    """For 100 normal values, the bootstrap equals Student's interval, to a tenth of its width."""
    values = np.random.default_rng(3).normal(10, 2, 100)
    found = percentile_t(values, Clusters.of(range(100)))
    assert found is not None
    error = float(values.std(ddof=1)) / 10

    assert error == pytest.approx(found.error)
    assert (-1.984, 1.984) == pytest.approx(((found.low - found.estimate) / error, (found.high - found.estimate) / error), abs=0.2)


def test_percentile_t_draws_whole_clusters() -> None:
    """Ten copies of a value in a cluster have no more information than a single value."""
    values = np.random.default_rng(3).normal(10, 2, 60)
    one = percentile_t(values, Clusters.of(range(60)))
    ten = percentile_t(np.repeat(values, 10), Clusters.of([i // 10 for i in range(600)]))
    assert one is not None and ten is not None

    assert (one.low, one.high) == pytest.approx((ten.low, ten.high))
