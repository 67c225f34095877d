"""Latencies: percentiles of whole blocks, and verdicts on ratios."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_agentbench.gate.bootstrap import Blocks, percentile_t
from pytest_agentbench.gate.bounded import Clusters
from pytest_agentbench.gate.decisions import Missing
from pytest_agentbench.gate.latency import compare_latency, fewest_scenarios, latency_limit
from pytest_agentbench.quantiles import percentile


def run(n: int, scale: float = 1.0, seed: int = 1) -> dict[str, list[float]]:
    """Five calls of each of n scenarios, whose lengths differ, in milliseconds."""
    generator = random.Random(seed)
    return {str(i): [scale * (100 + i) * generator.lognormvariate(0, 0.1) for _ in range(5)] for i in range(n)}


@settings(deadline=None, max_examples=100)
@given(st.lists(st.lists(st.floats(0.1, 100), max_size=4), min_size=1, max_size=8), st.sampled_from([10, 50, 90, 99]), st.data())
def test_percentiles_of_copies(blocks: list[list[float]], q: float, data: st.DataObject) -> None:
    """A block that is drawn twice counts twice: the percentile is the reports' and numpy's of all numbers written out, and nan of none."""
    copies = data.draw(st.lists(st.integers(0, 3), min_size=len(blocks), max_size=len(blocks)))
    written = [value for block, times in zip(blocks, copies, strict=True) for value in block * times]
    found = float(Blocks.of(blocks).percentile(q, np.array([copies]))[0]) if any(blocks) else math.nan

    if written:
        assert percentile(written, q) == pytest.approx(found) == pytest.approx(float(np.percentile(written, q)))
    else:
        assert math.isnan(found)


def test_an_unchanged_run_passes_and_a_slow_one_fails() -> None:
    """The same distribution is within 10 %, half as slow again is not; both are told from the same calls."""
    base = run(200)
    same, slow = compare_latency(run(200, seed=2), base, 50, 0.1), compare_latency(run(200, 1.5, seed=2), base, 50, 0.1)

    assert ("PASS", "FAIL") == (same.verdict, slow.verdict)
    assert slow.low is not None and slow.high is not None and slow.estimate is not None
    assert slow.low < 1.5 < slow.high and slow.estimate == pytest.approx(1.5, rel=0.05)
    assert (1.1, 200, (1000, 1000), "block bootstrap") == (slow.threshold, slow.n, slow.trials, slow.method)
    assert same.detectable is not None and 1 < same.detectable < 1.2
    assert slow == compare_latency(run(200, 1.5, seed=2), base, 50, 0.1), "the same seed, the same interval"


def test_units_and_places_do_not_matter() -> None:
    """Seconds give the ratio of milliseconds, and of runs that change places the ratio is the reciprocal."""
    new, base = run(50, 1.3), run(50, seed=3)
    forth, back = compare_latency(new, base, 50, 0.1), compare_latency(base, new, 50, 0.1)
    new_s, base_s = ({key: [call / 1e3 for call in calls] for key, calls in each.items()} for each in (new, base))
    seconds = compare_latency(new_s, base_s, 50, 0.1)

    assert forth.low is not None and forth.high is not None
    assert (forth.low, forth.high) == pytest.approx((seconds.low, seconds.high))
    assert (1 / forth.high, 1 / forth.low) == pytest.approx((back.low, back.high))


def test_rollouts_are_kept_whole() -> None:
    """Fifty equal calls of a scenario tell no more than one of them."""
    few = {str(i): [100.0 + 3 * i] for i in range(30)}
    many = {scenario: calls * 50 for scenario, calls in few.items()}
    one, fifty = latency_limit(few, 50, 120), latency_limit(many, 50, 120)

    assert (one.low, one.high) == (fifty.low, fifty.high)


@pytest.mark.parametrize(("q", "needed"), [(50, 20), (90, 100), (99, 1000), (10, 100)])
def test_a_tail_needs_scenarios(q: int, needed: int) -> None:
    """Ten scenarios are expected beyond a percentile that is gated; with one less nothing is decided."""
    assert needed == fewest_scenarios(q)
    decision = compare_latency(run(needed - 1), run(needed - 1), q, 0.5)

    assert ("INCONCLUSIVE", f"p{q} needs {needed} scenarios with calls, and there are {needed - 1}") == (decision.verdict, decision.reason)


def test_limits_of_a_percentile() -> None:
    """`ttft.p50 <= 500ms` passes far below and fails far above."""
    assert ["PASS", "INCONCLUSIVE", "FAIL"] == [latency_limit(run(100), 50, limit).verdict for limit in (500, 150, 50)]


def test_scenarios_of_one_run_are_counted() -> None:
    """Of a scenario without calls in one of the runs nothing can be said, and that is said."""
    new, base = {**run(30), "new": [1.0], "silent": []}, {**run(30), "old": [1.0], "silent": [1.0]}

    assert Missing(only_new=1, only_base=1, unmeasured=1) == compare_latency(new, base, 50, 0.1).missing


@pytest.mark.parametrize(
    ("call", "q", "message"), [(0.0, 50, "0.0 is not a latency"), (math.inf, 50, "inf is not a latency"), (1.0, 100, "not 100")]
)
def test_mistakes_are_refused(call: float, q: int, message: str) -> None:
    """A latency of nothing has no logarithm."""
    with pytest.raises(ValueError, match=message):
        latency_limit({"a": [call]}, q, 500)


def test_percentile_t_of_symmetric_values_is_nearly_t() -> None:
    """For 100 normal values the bootstrap finds Student's interval, to a tenth of its width."""
    values = np.random.default_rng(3).normal(10, 2, 100)
    found = percentile_t(values, Clusters.of(range(100)))
    assert found is not None
    error = float(values.std(ddof=1)) / 10

    assert error == pytest.approx(found.error)
    assert (-1.984, 1.984) == pytest.approx(((found.low - found.estimate) / error, (found.high - found.estimate) / error), abs=0.2)


def test_percentile_t_draws_whole_clusters() -> None:
    """Ten copies of a value in a cluster tell no more than one."""
    values = np.random.default_rng(3).normal(10, 2, 60)
    one = percentile_t(values, Clusters.of(range(60)))
    ten = percentile_t(np.repeat(values, 10), Clusters.of([i // 10 for i in range(600)]))
    assert one is not None and ten is not None

    assert (one.low, one.high) == pytest.approx((ten.low, ten.high))
