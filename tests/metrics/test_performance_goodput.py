"""Latency objectives: their syntax, and the calls that meet them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pytest_agentbench.metrics.performance import GoodputSummary, goodput, objectives_of
from pytest_agentbench.metrics.performance import parse_objective as parse
from pytest_agentbench.metrics.terms import Terms
from pytest_agentbench.records import Chunk, LLMCall, Rollout
from tests.frames import scenarios_of

MS = 1_000_000  # nanoseconds


def call(*chunks: int, end: int = 1000, **keys: Any) -> LLMCall:
    """Returns a call that was sent at 0, with output at these milliseconds."""
    return LLMCall(0, 0, end * MS, tuple(Chunk(at * MS, "content") for at in chunks), **keys)


def judged(slo: Mapping[str, float], *calls: LLMCall) -> GoodputSummary:
    """Returns the goodput of a rollout of two seconds with these calls."""
    rollout = Rollout("shop", "s", "default", 1, "ok", ended_ns=2000 * MS, calls=calls)
    found = goodput(scenarios_of(rollout, terms=Terms(objectives_of(slo))))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("ttft=500ms", ("ttft", 500.0)),
        ("itl=0.2s", ("itl", 200.0)),
        (" tpot = 12.5 ms ", ("tpot", 12.5)),
        ("e2e=30s", ("e2e", 30_000.0)),
    ],
)
def test_objectives(text: str, parsed: tuple[str, float]) -> None:
    """An objective is a name and a time with a unit."""
    assert parsed == parse(text)


@pytest.mark.parametrize("text", ["ttft", "ttft=", "ttft=500", "ttft=5m", "ttft=-5ms", "ttft=0ms", "=5ms", "", "ttft=5ms5"])
def test_invalid_objectives(text: str) -> None:
    """A time without a unit and a missing time are refused."""
    with pytest.raises(ValueError, match=r"a latency objective must be NAME=TIME \(ms or s\), for example ttft=500ms or e2e=30s"):
        parse(text)


def test_an_unknown_objective() -> None:
    """The error for an unknown objective lists the known ones."""
    with pytest.raises(ValueError, match=r"no objective 'ttfb' .did you mean 'ttft'..; known: e2e, itl, tpot, ttft"):
        parse("ttfb=500ms")


@pytest.mark.parametrize(("objective", "limit"), [("ttft", 100.0), ("itl", 60.0), ("tpot", 40.0), ("e2e", 1000.0)], ids=str)
def test_a_limit_is_still_good(objective: str, limit: float) -> None:
    """A latency equal to the objective meets it, and misses any lower one."""
    one = call(100, 120, 180, completion_tokens=3)
    met, missed = judged({objective: limit}, one), judged({objective: limit - 0.001}, one)

    assert ((1, 0), (0, 1)) == ((met.good_calls, met.bad_calls), (missed.good_calls, missed.bad_calls))
    assert {objective: 1} == missed.missed


def test_all_objectives_count() -> None:
    """A good call meets all objectives. Misses are counted for each objective."""
    summary = judged({"ttft": 50.0, "itl": 50.0, "e2e": 5000.0}, call(100, 200), call(10, 200), call(10, 20))

    assert (1, 2, {"ttft": 1, "itl": 2, "e2e": 0}) == (summary.good_calls, summary.bad_calls, summary.missed)
    assert pytest.approx(1 / 3) == summary.attainment
    assert 0.5 == summary.goodput_per_s


def test_failed_calls_are_bad() -> None:
    """Failed calls are bad, however fast they were."""
    found = judged({"ttft": 50.0}, call(10, 20, error_kind="cut"))

    assert (0, 1) == (found.good_calls, found.bad_calls)


def test_calls_without_gaps_or_tokens() -> None:
    """A call with one token meets an objective on gaps. A call without a first token is unknown, unless it misses another objective."""
    gaps = judged({"itl": 1.0, "tpot": 1.0}, call(100, completion_tokens=1))
    first, both = judged({"ttft": 1.0}, call()), judged({"ttft": 1.0, "e2e": 10.0}, call())

    assert [(1, 0, 0), (0, 0, 1), (0, 1, 0)] == [(each.good_calls, each.bad_calls, each.unknown_calls) for each in (gaps, first, both)]
    assert first.attainment is None
    assert [0.5, 0.0, 0.0] == [each.goodput_per_s for each in (gaps, first, both)]
