"""Metrics of a chosen window: literal spans in, literal numbers out."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_agentbench.metrics.performance import Offsets, WindowSummary, window
from pytest_agentbench.records import Chunk, LLMCall, Rollout
from tests.frames import scenarios_of

S = 1_000_000_000  # nanoseconds


def call(sent: float, first: float, end: float, **keys: Any) -> LLMCall:
    """Returns a call with two tokens, the second half way between the first and the end. Times are seconds."""
    stamps = tuple(Chunk(round(at * S), "content") for at in (first, (first + end) / 2))
    return LLMCall(received_ns=0, sent_ns=round(sent * S), ended_ns=round(end * S), chunks=stamps, completion_tokens=2, **keys)


def rollout(*calls: LLMCall, start: float, end: float, **keys: Any) -> Rollout:
    return Rollout("shop", "s", "default", 1, "ok", calls=calls, started_ns=round(start * S), ended_ns=round(end * S), **keys)


def measured(offsets: Offsets, *rollouts: Rollout) -> WindowSummary:
    return window(scenarios_of(*rollouts), offsets)


#: The first call is sent 10 s after the clock's 0, 1 s after the start of its rollout. The last rollout ends 30 s after it.
EARLY = rollout(call(10, 11, 15), call(18, 20, 24), start=9, end=24)
LATE = rollout(call(30, 33, 35), call(36, 37, 38, error_kind="cut", called_ns=35 * S), start=24, end=40)


def test_the_content_of_a_window() -> None:
    """A window from 5 s to 22 s after the first call has its tokens, shares of rollouts, ended calls and sent calls."""
    found = measured((5, 22), LATE, EARLY)

    assert (5, 22, 17.0, 30.0) == (found.start_s, found.end_s, found.seconds, found.run_s)
    assert (2, 0) == (found.calls, found.failed_calls)
    assert 2 / 17 == found.metrics["output_tokens_per_s"]
    assert pytest.approx((9 / 15 + 8 / 16) * 3600 / 17) == found.metrics["rollouts_per_hour"]
    assert 60 / 17 == found.metrics["calls_per_minute"]
    ttft, itl = found.latencies["ttft_ms"], found.latencies["itl_ms"]
    assert ttft is not None and itl is not None
    assert (2, 2000.0, 3000.0) == (ttft.n, ttft.min, ttft.max)
    assert (2, 1000.0, 2000.0) == (itl.n, itl.min, itl.max)
    assert found.latencies["first_answer_ms"] == ttft


def test_ends_that_are_left_out() -> None:
    """Without start or end, the window extends to that of the run. A failed call counts but has no latency."""
    whole, rest = measured((0, None), EARLY, LATE), measured((25, 100), EARLY, LATE)

    ttft = whole.latencies["ttft_ms"]
    assert ttft is not None
    assert (30.0, 4, 1, 3) == (whole.seconds, whole.calls, whole.failed_calls, ttft.n)
    assert (5.0, 1, 1) == (rest.seconds, rest.calls, rest.failed_calls)
    assert {None} == {*rest.latencies.values()}


def test_an_empty_window() -> None:
    """A window after the end of the run, and a run without calls, have no values."""
    late, empty = measured((30, 60), EARLY, LATE), measured((0, 60), rollout(start=0, end=9))

    rates = late.metrics["output_tokens_per_s"], late.metrics["rollouts_per_hour"]
    assert (0, 30.0, 0, None, None, None) == (late.seconds, late.run_s, late.calls, *rates, late.latencies["ttft_ms"])
    assert (0, 0.0, 0) == (empty.seconds, empty.run_s, empty.calls)


def test_sessions_follow_each_other() -> None:
    """In a window, the second session begins where the first one ended, without the pause, whatever their clocks."""
    again = rollout(call(1000, 1001, 1002), start=1000, end=1010, session=2)
    found = measured((25, 35), EARLY, LATE, again)

    assert (40.0, 10.0, 2, 1) == (found.run_s, found.seconds, found.calls, found.failed_calls)
