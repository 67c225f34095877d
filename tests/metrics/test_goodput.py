"""Service level objectives: how they are written, and which calls meet them."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_agentbench.metrics.goodput import Goodput, parse
from pytest_agentbench.records import Chunk, LLMCall

MS = 1_000_000  # nanoseconds


def call(*chunks: int, end: int = 1000, **keys: Any) -> LLMCall:
    """A call that was sent at 0, with output at these milliseconds."""
    return LLMCall(0, 0, end * MS, tuple(Chunk(at * MS, "content") for at in chunks), **keys)


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
    """A name and a time with its unit."""
    assert parsed == parse(text)


@pytest.mark.parametrize("text", ["ttft", "ttft=", "ttft=500", "ttft=5m", "ttft=-5ms", "ttft=0ms", "=5ms", "", "ttft=5ms5"])
def test_what_is_no_objective(text: str) -> None:
    """A time without a unit could be either, and no time is none."""
    with pytest.raises(ValueError, match="should be NAME=TIME, for example ttft=500ms or e2e=30s"):
        parse(text)


def test_an_unknown_objective() -> None:
    """Those that there are, are named."""
    with pytest.raises(ValueError, match="no objective 'ttfb'; known: e2e, itl, tpot, ttft"):
        parse("ttfb=500ms")


@pytest.mark.parametrize(("objective", "limit"), [("ttft", 100.0), ("itl", 60.0), ("tpot", 40.0), ("e2e", 1000.0)], ids=str)
def test_a_limit_is_still_good(objective: str, limit: float) -> None:
    """TTFT 100, gaps of 20 and 60, TPOT 40 and E2E 1000 ms: each meets its limit, and misses one that is any lower."""
    one = call(100, 120, 180, completion_tokens=3)
    met, missed = Goodput({objective: limit}), Goodput({objective: limit - 0.001})
    met.add(one)
    missed.add(one)

    assert ((1, 0), (0, 1)) == ((met.good, met.bad), (missed.good, missed.bad))
    assert {objective: 1} == missed.missed


def test_all_objectives_count() -> None:
    """A good call meets all; what it misses is counted for each."""
    goodput = Goodput({"ttft": 50.0, "itl": 50.0, "e2e": 5000.0})
    for each in (call(100, 200), call(10, 200), call(10, 20)):
        goodput.add(each)

    summary = goodput.summary(2.0)
    assert summary is not None
    assert (1, 2, {"ttft": 1, "itl": 2, "e2e": 0}) == (summary.good_calls, summary.bad_calls, summary.missed)
    assert pytest.approx(1 / 3) == summary.attainment
    assert 0.5 == summary.goodput_per_s


def test_failed_calls_are_bad() -> None:
    """However fast they were."""
    goodput = Goodput({"ttft": 50.0})
    goodput.add(call(10, 20, error_kind="cut"))

    assert (0, 1) == (goodput.good, goodput.bad)


def test_what_a_call_does_not_have() -> None:
    """One token breaks no promise about gaps; without a first token nobody knows, unless another promise is broken."""
    gaps, first, both = Goodput({"itl": 1.0, "tpot": 1.0}), Goodput({"ttft": 1.0}), Goodput({"ttft": 1.0, "e2e": 10.0})
    for goodput, each in ((gaps, call(100, completion_tokens=1)), (first, call()), (both, call())):
        goodput.add(each)

    assert [(1, 0, 0), (0, 0, 1), (0, 1, 0)] == [(each.good, each.bad, each.unknown) for each in (gaps, first, both)]
    summary = first.summary(1.0)
    assert summary is not None and summary.attainment is None
