"""Functions that several tools share: the start of a call, the notion of success, statistics and rates."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_agentbench.records import LLMCall
from pytest_agentbench.stats.quantiles import percentile

NO_CHOICES = frozenset({"usage", "other"})  # kinds of events without choices

TOKENS = "Tokens are counted by the server; the tool by default counts them with a tokenizer."
CLOCK = "Its clock starts when the client makes the call, so the client queue is in TTFT and latency."


def called_ns(call: LLMCall) -> int:
    """Returns when the client made the call, or else when the request was sent, or else when the tap (the recording proxy) received it."""
    return next(at for at in (call.called_ns, call.sent_ns, call.received_ns) if at is not None)


def counts_as_success(call: LLMCall) -> bool:
    """Returns whether a call is a success for tools that ignore error events within a stream."""
    return call.error_kind is None or (call.error_kind == "error_event" and bool(call.output))


def mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def deviation(values: Sequence[float]) -> float | None:
    """Returns the population standard deviation, which is numpy's default."""
    center = mean(values)
    return None if center is None else math.sqrt(math.fsum((value - center) ** 2 for value in values) / len(values))


def columns(values: Sequence[float], names: Sequence[str]) -> list[float | None]:
    """Returns the statistics with these names (`avg`, `median`, `std`, `p90`, ...) of values, however few. They are None without values."""
    ordered = sorted(values)
    simple = {"min": ordered[0], "max": ordered[-1]} if ordered else {}
    return [simple.get(name) if name in ("min", "max") else _statistic(ordered, name) for name in names]


def _statistic(ordered: Sequence[float], name: str) -> float | None:
    match name:
        case "avg" | "mean":
            return mean(ordered)
        case "std":
            return deviation(ordered)
        case "median":
            return percentile(ordered, 50)
        case _:
            return percentile(ordered, int(name.lower().removeprefix("p")))


def rate(amount: float, duration_ns: float) -> float | None:
    """Returns the amount per second. None if the duration is not positive."""
    return amount * 1e9 / duration_ns if duration_ns > 0 else None


class Extent:
    """The time from the first start to the last end of the added calls."""

    def __init__(self) -> None:
        self.start: int | None = None
        self.end = 0

    def add(self, start: int, end: int) -> None:
        self.start = start if self.start is None else min(self.start, start)
        self.end = max(self.end, end) if self.end else end

    @property
    def ns(self) -> int:
        return 0 if self.start is None else self.end - self.start
