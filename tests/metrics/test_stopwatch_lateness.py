"""Effects of late events on timings: usable values are close to the true ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate

import pytest

from pytest_agentbench.metrics import timings
from pytest_agentbench.metrics.frame import Slice
from pytest_agentbench.metrics.performance import objectives_of
from pytest_agentbench.metrics.stopwatch import OFF, CpuShares, judgement_effects, percentile_effects, stopwatch_of
from pytest_agentbench.metrics.terms import Terms
from pytest_agentbench.records import Chunk, LLMCall, Rollout
from pytest_agentbench.stats.quantiles import percentile
from tests.frames import scenarios_of

MS = 1_000_000


def call(times_ms: Sequence[float], late: Sequence[int], lag_ns: int | None = 5 * MS) -> LLMCall:
    """Returns a call sent at 0 whose events with the indices `late` have the timestamp of the next one."""
    stamped = [*times_ms]
    for place in sorted(late, reverse=True):
        stamped[place] = stamped[place + 1]
    chunks = [Chunk(round(at * MS), "content", place not in late, lag_ns) for place, at in enumerate(stamped)]
    return LLMCall(0, 0, round((times_ms[-1] + 1) * MS), tuple(chunks), completion_tokens=len(chunks), stamp="kernel")


def sliced(*calls: LLMCall, **slo: float) -> Slice:
    """Returns a slice in which each call has its own rollout."""
    rollouts = [Rollout("s", f"s-{place}", "default", 0, "ok", ended_ns=each.ended_ns, calls=(each,)) for place, each in enumerate(calls)]
    return scenarios_of(*rollouts, terms=Terms(objectives_of(slo)))


@pytest.mark.parametrize(
    ("times", "late", "evened"),
    [
        ([100, 120, 140], [], [100, 120, 140]),
        ([100, 120, 140, 160], [1], [100, 120, 140, 160]),
        ([100, 111, 118, 160], [1, 2], [100, 120, 140, 160]),
        ([101, 120, 140, 160], [0], [100, 120, 140, 160]),
        ([10, 15, 90, 165], [0], [7.5, 15, 90, 165]),
        ([10, 20, 30], [0, 1], [10, 20, 30]),
    ],
    ids=["in time", "one", "two in a row", "the first", "the first, soon after the send", "all in one read"],
)
def test_late_events_are_spread_evenly(times: Sequence[float], late: Sequence[int], evened: Sequence[float]) -> None:
    """Late events are spread evenly between two timestamps. Before the first one they get the mean gap, but not before sending."""
    found = timings.evened(call(times, late), late)

    assert evened == pytest.approx([chunk.at_ns / MS for chunk in found.output])


@pytest.mark.parametrize("seed", range(20))
def test_a_usable_percentile_is_near_the_truth(seed: int) -> None:
    """Usable percentiles are within 7 % of the true ones for any share of late events, at random or close to the next event."""
    draw = random.Random(seed)
    share, spread, near = draw.choice([0.001, 0.01, 0.03, 0.1, 0.4]), draw.choice([0.1, 0.3, 0.6]), draw.random() < 0.5
    calls, true_gaps = [], []
    for _ in range(50):
        gaps = [draw.lognormvariate(3, spread) for _ in range(100)]
        times = [*accumulate(gaps)]
        late = [place for place in range(99) if draw.random() < share and not (near and gaps[place + 1] > 20)]
        calls.append(call(times, late))
        true_gaps += gaps[1:]
    part = sliced(*calls)
    found = stopwatch_of(part, CpuShares(), 1).late_effects

    usable = [q for q in (50, 90, 95, 99) if found[f"itl.p{q}"] <= OFF]
    for q in usable:
        assert pytest.approx(percentile(true_gaps, q), rel=0.07) == part.value(f"itl.p{q}"), (q, share, spread, near)
    assert usable or share > 0.01


def test_a_late_first_event() -> None:
    """A late first event affects TTFT and TPOT. Gaps of a call that was read in time do not change."""
    part = sliced(call([100, 120, 140, 160], [0]), ttft=105.0, e2e=1.0)

    found = percentile_effects(part)

    assert [120.0, pytest.approx(40 / 3), 0.0, 20.0] == [*map(part.value, ("ttft.p50", "tpot.p50", "itl.min", "itl.p50"))]
    assert pytest.approx(0.2) == found["ttft.p50"] == found["ttft.p99"]
    assert pytest.approx(1 / 3) == found["tpot.p50"]
    assert {"ttft": 1.0} == judgement_effects(part)
    assert (0.0, 1.0) == tuple(stopwatch_of(each, CpuShares(), 1).late_first_share for each in (sliced(), part))


def test_events_that_were_read_in_time_have_no_effect() -> None:
    """If the server sent several events together, they have no effect on the timings."""
    part = sliced(call([100, 120, 140, 160], [1], lag_ns=0), itl=10.0)

    assert [100.0, 20.0, 0.0, 40.0] == [*map(part.value, ("ttft.p50", "tpot.p50", "itl.min", "itl.max"))]
    assert {0.0} == {*percentile_effects(part).values()}
    assert {"itl": 0.0} == judgement_effects(part)
