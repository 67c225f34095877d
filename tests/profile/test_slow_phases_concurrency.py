"""Spikes of concurrency, and the latencies of calls sent in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pytest_agentbench.profile import read_profile
from pytest_agentbench.profile.slow_phases import Concurrency, Latencies, Levels, level_at
from pytest_agentbench.records import LLMCall
from tests.made_runs import run_directory
from tests.tables.shop import call, rollout


def concurrency(folder: Path, *calls: LLMCall) -> Concurrency:
    found = read_profile(run_directory(folder / "run", rollout(end=100_000, calls=calls))).concurrency
    assert found is not None

    return found


def test_a_spike(tmp_path: Path) -> None:
    """A span with more calls in flight than in 90 % of the time is a spike, with its start, duration, peak and latencies."""
    alone = [call(at, at + 100, end=at + 1_000) for at in range(0, 10_000, 1_000)]
    more = [call(5_500 + each, 5_500 + each + 400, end=5_900 + each) for each in range(4)]
    found = concurrency(tmp_path, *alone, *more)
    [spike] = found.spikes

    assert (1, 5, 1) == (found.usual, found.peak, found.count)
    assert (5.5, 0.403) == pytest.approx((spike.start_s, spike.duration_s), abs=1e-6)
    assert (5, 4) == (spike.peak, spike.sent.calls)
    assert {4: [400.0, 400.0], 10: [100.0, 1_000.0]} == {
        each.calls: pytest.approx([each.ttft_ms, each.e2e_ms]) for each in (found.inside, found.outside)
    }
    assert 0.0403 == pytest.approx(found.share, abs=1e-6)


def test_levels(tmp_path: Path) -> None:
    """Calls are grouped by the number in flight when they were sent: 1, 2, 3 to 4, and so on. Levels that did not occur are left out."""
    calls = [call(0, 10, end=1_000), *(call(100 + each, 300, end=1_000) for each in range(3))]
    levels = concurrency(tmp_path, *calls).levels

    assert [(1, 1, 1), (2, 2, 1), (3, 4, 2)] == [(each.least, each.most, each.sent.calls) for each in levels]
    assert [0.1, 0.001, 0.899] == pytest.approx([each.share for each in levels], abs=1e-6)
    assert [10.0, 200.0, 198.5] == pytest.approx([each.sent.ttft_ms for each in levels])


def test_an_even_load_has_no_spike(tmp_path: Path) -> None:
    """The usual number of calls in flight is not a spike, even if it is high."""
    found = concurrency(tmp_path, *(call(each, 500, end=10_000) for each in range(8)))

    assert (8, 8, 0, ()) == (found.usual, found.peak, found.count, found.spikes)
    assert Latencies(0, None, None) == found.inside


def test_failed_calls_are_in_flight(tmp_path: Path) -> None:
    """A failed call counts as in flight, but has no latency."""
    found = concurrency(tmp_path, call(0, end=1_000, error_kind="server_error"), call(500, 700, end=1_000))

    assert (2, 2) == (found.peak, sum(each.sent.calls for each in found.levels))
    assert [None, 200.0] == [None if each.sent.ttft_ms is None else pytest.approx(each.sent.ttft_ms) for each in found.levels]


def test_the_staircase() -> None:
    """A span that ends when another one starts does not overlap it. Levels have the number of spans at each time, and their durations."""
    levels = Levels.of(np.array([0.0, 1.0, 2.0]), np.array([2.0, 3.0, 4.0]))

    assert [1, 2, 2, 1, 0] == levels.counts.tolist()
    assert {1: 2.0, 2: 2.0} == levels.duration()
    assert [0, 1, 2, 2, 0] == levels.at(np.array([-1.0, 0.0, 1.5, 2.0, 4.0])).tolist()
    assert [1, 1, 2, 0] == [level_at(levels.duration(), q) for q in (0, 50, 51)] + [level_at({}, 50)]


def test_nothing_under_way() -> None:
    """Without spans there is no level and no time."""
    levels = Levels.of(np.empty(0), np.empty(0))

    assert {} == levels.duration()
