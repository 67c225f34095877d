"""Spans of time: overlaps, steady intervals, and the split of a rollout's time."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.metrics.frame import Slice
from pytest_agentbench.metrics.timeline import PARTS, InFlight, Span, at_least, in_flight, overlap_ns, split, steady, total_ns
from pytest_agentbench.records import Chunk, LLMCall, Rollout, ToolCall
from tests.frames import scenarios_of

MS = 1_000_000  # nanoseconds

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)).map(lambda each: (each[0], each[0] + each[1])), max_size=12)


def test_in_flight() -> None:
    """Peak and mean are over the whole span, including idle time. A call that starts when another one ends does not overlap it."""
    assert InFlight(peak=2, mean=0.75) == in_flight([(0, 100), (50, 100), (100, 150), (300, 400)])
    assert in_flight([]) is None


def brute(spans: list[Span], instant: int) -> int:
    """Returns how many spans contain an instant."""
    return sum(start <= instant < end for start, end in spans)


@given(SPANS, st.integers(1, 6))
def test_windows_against_brute_force(spans: list[Span], count: int) -> None:
    """The intervals contain exactly the instants with enough overlaps, and are ordered, disjoint and as long as possible."""
    found = at_least(spans, count)

    assert [brute(spans, instant) >= count for instant in range(45)] == [brute(found, instant) == 1 for instant in range(45)]
    assert all(end < start for (_, end), (start, _) in pairwise(found))
    flight = in_flight(spans)
    assert max((brute(spans, instant) for instant in range(45)), default=0) == (flight.peak if flight else 0)


@pytest.mark.parametrize(("asked", "floor"), [(1, 1), (8, 8), (10, 9), (20, 18), (48, 44)])
def test_steady_is_90_percent(asked: int, floor: int) -> None:
    """Steady means 90 % of the concurrency, rounded up: 9 of 10, but 8 of 8."""
    assert [(0, 10)] == steady([(0, 10)] * floor, asked)
    assert [] == steady([(0, 10)] * (floor - 1), asked)


@given(st.tuples(st.integers(0, 40), st.integers(0, 40)).map(sorted), SPANS)
def test_overlap_against_brute_force(span: list[int], spans: list[Span]) -> None:
    """The overlap is the number of instants in both."""
    others = at_least(spans, 1)

    assert sum(brute(others, instant) for instant in range(*span)) == overlap_ns((span[0], span[1]), others)


def sliced(*calls: LLMCall) -> Slice:
    """Returns a slice with a rollout that made these calls."""
    return scenarios_of(Rollout("s", "a", "default", 1, "ok", calls=calls))


def tokens_within(spans: list[Span], *calls: LLMCall) -> float:
    """Returns the tokens of calls that arrived within spans."""
    return sliced(*calls).within({1: spans}).output_tokens


def test_tokens_come_with_their_events() -> None:
    """Tokens are shared equally by output events, or counted by the server, and each event is either in a window or not."""
    chunks = [Chunk(at * MS, "content") for at in (100, 200, 300)]
    even = LLMCall(0, 0, 0, (Chunk(0, "role"), *chunks), completion_tokens=12)
    told = tuple(chunk._replace(tokens=tokens) for chunk, tokens in zip(chunks, (7, 9, 10), strict=True))
    counted = LLMCall(0, 0, 0, told, completion_tokens=12)

    windows: list[Span] = [(0, 150 * MS), (199 * MS, 225 * MS)]
    assert (8.0, 9.0) == (tokens_within(windows, even), tokens_within(windows, counted))
    second = [(100 * MS, 200 * MS)]
    assert (4.0, 2.0) == (tokens_within(second, even), tokens_within(second, counted)), "after its start, up to its end"
    assert (12.0, 12.0) == (tokens_within([(0, 1000 * MS)], even), tokens_within([(0, 1000 * MS)], counted))
    assert 0.0 == tokens_within([(-1, 1000 * MS)], LLMCall(0, 0, 0, (Chunk(0, "usage"),), completion_tokens=5))


@given(st.lists(st.tuples(st.lists(st.integers(0, 40), max_size=5), st.integers(0, 9), st.booleans()), max_size=5), SPANS)
def test_tokens_against_brute_force(calls: list[tuple[list[int], int, bool]], spans: list[Span]) -> None:
    """The tokens of a window equal the sum over the events in it."""
    windows, made, expected = at_least(spans, 1), [], 0.0
    for stamps, each, counted in calls:
        chunks = [Chunk(at, "content", tokens=each * place if counted else None) for place, at in enumerate(sorted(stamps), 1)]
        made.append(LLMCall(0, 0, 0, (*chunks,), completion_tokens=each * len(chunks)))
        expected += each * sum(start < at <= end for at in stamps for start, end in windows)

    assert expected == pytest.approx(tokens_within(windows, *made))


def test_an_event_takes_sixteen_bytes() -> None:
    """100,000 events take two numbers each (timestamp and gap), including the memory of their calls."""
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    part = sliced(*(LLMCall(0, 0, 0, tuple(Chunk(start + place, "content") for place in range(100))) for start in range(0, 100_000, 100)))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert 100_000.0 == part.within({1: [(-1, 100_000)]}).output_tokens
    assert (after - before) / 100_000 < 24


def call(received: int, sent: int | None, first: int | None, ended: int, called: int | None = None) -> LLMCall:
    """Returns a call. Times are milliseconds."""
    chunks = () if first is None else (Chunk((first - 1) * MS, "role"), Chunk(first * MS, "content"))
    return LLMCall(
        received * MS, None if sent is None else sent * MS, ended * MS, chunks, called_ns=None if called is None else called * MS
    )


def run(*calls: LLMCall, tools: tuple[Span, ...] = (), start: int = 0, end: int = 100) -> dict[str, float]:
    """Returns the parts of a rollout above 0 in milliseconds."""
    tool_calls = tuple(ToolCall("find", {}, 1, started_ns=begin * MS, ended_ns=stop * MS) for begin, stop in tools)
    found = split(Rollout("s", "a", "default", 1, "ok", started_ns=start * MS, ended_ns=end * MS, calls=calls, tool_calls=tool_calls))
    return {part: duration / MS for part, duration in found.items() if duration}


def test_a_simple_rollout() -> None:
    """The time of a rollout is split into client queue, wait for the first token, decoding, tools and agent."""
    assert {"client_queue": 3, "first_token": 20, "decoding": 30, "tools": 10, "agent": 37} == run(
        call(12, 13, 33, 63, called=10), tools=((70, 80),)
    )


@pytest.mark.parametrize(
    ("calls", "tools", "parts"),
    [
        ((call(0, 0, 40, 60), call(0, 0, 80, 90)), (), {"first_token": 60, "decoding": 30, "agent": 10}),
        ((call(0, 0, None, 50),), (), {"first_token": 50, "agent": 50}),
        ((call(10, None, None, 50),), (), {"client_queue": 40, "agent": 60}),
        ((call(0, 0, 50, 100),), ((20, 70),), {"first_token": 50, "decoding": 50}),
        ((call(30, 60, 70, 80, called=20),), ((0, 50),), {"tools": 50, "client_queue": 10, "first_token": 10, "decoding": 10, "agent": 20}),
        ((call(10, 10, 20, 300),), (), {"agent": 10, "first_token": 10, "decoding": 80}),
    ],
    ids=["parallel calls", "no stream", "never sent", "a tool beside a call", "a tool beside the queue", "cut at the end"],
)
def test_precedence(calls: tuple[LLMCall, ...], tools: tuple[Span, ...], parts: dict[str, float]) -> None:
    """If activities overlap, time counts first for decoding, then for the first token, tools and client queue."""
    assert parts == run(*calls, tools=tools)


def test_the_time_of_a_judge() -> None:
    """Time in which only a judge's call is active counts for the judge, from the request on.

    Time after the end of the rollout does not count.
    """
    asked = (call(60, 65, 70, 80, called=55), call(90, 90, None, 300), call(200, 210, None, 300))
    judge = tuple(replace(each, role="judge") for each in asked)
    found = split(Rollout("s", "a", "default", 1, "ok", ended_ns=100 * MS, calls=(call(0, 0, 10, 57, called=0),), other_calls=judge))

    assert {"first_token": 10, "decoding": 47, "judge": 33, "agent": 10} == {part: took / MS for part, took in found.items() if took}


def test_the_time_of_a_role_elsewhere() -> None:
    """The wait for another endpoint counts for `roles`, unless a tool made the call."""
    expert = tuple(replace(call(at, at, at + 5, at + 10), role="search", endpoint="http://expert/v1") for at in (10, 50))
    tool = ToolCall("search", {}, 1, started_ns=40 * MS, ended_ns=60 * MS)
    found = split(Rollout("s", "a", "default", 1, "ok", ended_ns=100 * MS, other_calls=expert, tool_calls=(tool,)))

    assert {"roles": 10, "tools": 20, "agent": 70} == {part: took / MS for part, took in found.items() if took}


TIMES = st.lists(st.integers(-20, 120), min_size=4, max_size=4).map(sorted)


@given(st.lists(st.tuples(TIMES, st.booleans(), st.booleans()), max_size=5), st.lists(TIMES, max_size=3), st.integers(0, 100))
def test_parts_sum_to_the_duration(times: list[tuple[list[int], bool, bool]], tools: list[Any], end: int) -> None:
    """Every instant belongs to exactly one part, and no part is negative."""
    calls = [call(a, b if sent else None, c if chunks and sent else None, d, called=a) for (a, b, c, d), sent, chunks in times]
    found = run(*calls, tools=tuple((each[0], each[3]) for each in tools), end=end)

    assert end == sum(found.values())
    assert set(found) <= set(PARTS)
    assert all(duration > 0 for duration in found.values())


def test_lengths() -> None:
    """The total length of disjoint spans is the sum of their lengths."""
    assert 30 == total_ns([(0, 10), (20, 40)])
