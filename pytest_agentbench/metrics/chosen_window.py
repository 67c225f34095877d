"""The measurement window that a user chooses, and what was measured in it."""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_agentbench.metrics import registry
from pytest_agentbench.metrics.windows import Span, Timeline, overlap_ns, total_ns
from pytest_agentbench.records import LLMCall
from pytest_agentbench.stats.percentiles import LatencySpread, latency_spread, series

Offsets = tuple[float, float | None]  # seconds after the first call, from and to; None: to the end


@dataclass(frozen=True)
class WindowSummary:
    """What was measured in [a window of your own](metrics.md#a-window-of-your-own)."""

    start_s: float  # as asked, seconds after the start of the first call; several sessions follow each other without the pauses
    end_s: float | None  # as asked; null: to the end
    seconds: float  # of the window that there were; 0: the run was over before
    run_s: float  # seconds from the first call to the end of the run
    calls: int  # LLM calls that were sent in it
    failed_calls: int  # of them
    output_tokens_per_s: float | None  # tokens that came in it
    rollouts_per_hour: float | None  # `ok` and `limit` rollouts, of each the share that lies in it
    calls_per_minute: float | None  # successful LLM calls that ended in it
    latencies: Mapping[str, LatencySpread | None]  # of the calls that were sent in it: `ttft_ms`, ...; null when there is no value


class SentCalls:
    """The timings of calls with when they were sent. Eight bytes a number, and four a gap."""

    def __init__(self) -> None:
        self.sent, self.ended = array("q"), array("q")  # nanoseconds
        self.failed = array("b")
        self._values = series()  # key of a metric -> milliseconds, one value a call
        self._gaps: defaultdict[str, array[float]] = defaultdict(lambda: array("f"))  # key of an event's metric -> milliseconds
        self._ends: defaultdict[str, array[int]] = defaultdict(lambda: array("q"))  # how many gaps there are with each call's

    def add(self, call: LLMCall) -> None:
        if call.sent_ns is None:
            return
        self.sent.append(call.sent_ns)
        self.ended.append(call.ended_ns)
        self.failed.append(call.error_kind is not None)
        for metric in registry.latencies("call", "event").values():
            if metric.of_events is not None:
                self._gaps[metric.key].extend(gap / 1e6 for gap in metric.of_events(call))
                self._ends[metric.key].append(len(self._gaps[metric.key]))
            elif metric.of_call is not None:
                value = None if call.error_kind else metric.of_call(call)
                self._values[metric.key].append(math.nan if value is None else value / 1e6)

    def within(self, span: Span) -> list[int]:
        """The places of those that were sent in a span."""
        return [place for place, sent in enumerate(self.sent) if span[0] <= sent < span[1]]

    def values(self, key: str, places: Sequence[int]) -> Iterator[float]:
        """What those at some places have of a metric, milliseconds."""
        if key in self._ends:
            ends, gaps = self._ends[key], self._gaps[key]
            for place in places:
                yield from gaps[ends[place - 1] if place else 0 : ends[place]]
        elif key in self._values:
            yield from (value for place in places if not math.isnan(value := self._values[key][place]))


class ChosenWindow:
    """Collects what is needed to say what was measured in a window: where it lies is known when all calls are."""

    def __init__(self, offsets: Offsets) -> None:
        self.offsets = offsets
        self._calls = defaultdict[int, SentCalls](SentCalls)  # session -> its calls

    def add(self, call: LLMCall, session: int) -> None:
        self._calls[session].add(call)

    def summary(self, sessions: Mapping[int, Timeline]) -> WindowSummary:
        spans, run_ns = placed(self.offsets, sessions)
        seconds = total_ns(spans.values()) / 1e9
        chosen = {number: self._calls[number].within(span) for number, span in spans.items()}
        ended = sum(_ended_well(self._calls[number], span) for number, span in spans.items())
        tokens = sum(sessions[number].tokens.within([span]) for number, span in spans.items())
        rollouts = sum(_share(own, span) for number, span in spans.items() for own in sessions[number].evaluable)
        return WindowSummary(
            *self.offsets,
            seconds=seconds,
            run_s=run_ns / 1e9,
            calls=sum(map(len, chosen.values())),
            failed_calls=sum(self._calls[number].failed[place] for number, places in chosen.items() for place in places),
            output_tokens_per_s=tokens / seconds if seconds else None,
            rollouts_per_hour=rollouts * 3600 / seconds if seconds else None,
            calls_per_minute=ended * 60 / seconds if seconds else None,
            latencies={each.key: self._spread(each.key, chosen) for each in registry.latencies("call", "event").values()},
        )

    def _spread(self, key: str, chosen: Mapping[int, Sequence[int]]) -> LatencySpread | None:
        return latency_spread(value for number, places in chosen.items() for value in self._calls[number].values(key, places))


def placed(offsets: Offsets, sessions: Mapping[int, Timeline]) -> tuple[dict[int, Span], int]:
    """(session -> what the window has of it, nanoseconds from the first call to the end), sessions one after the other, without pauses.

    A session begins with its first call and ends with its last call or rollout. One without calls is not there.
    """
    low, high = (None if each is None else round(each * 1e9) for each in offsets)
    spans: dict[int, Span] = {}
    before = 0
    for number, timeline in sorted(sessions.items()):
        if timeline.calls:
            first = min(start for start, _ in timeline.calls)
            last = max(end for _, end in (*timeline.calls, *timeline.rollouts))
            start = max(first, first + (low or 0) - before)
            end = last if high is None else min(last, first + high - before)
            if start < end:
                spans[number] = start, end
            before += last - first
    return spans, before


def _share(own: Span, window: Span) -> float:
    return overlap_ns(own, [window]) / (own[1] - own[0]) if own[0] < own[1] else 0.0


def _ended_well(calls: SentCalls, span: Span) -> int:
    return sum(not failed and span[0] < ended <= span[1] for ended, failed in zip(calls.ended, calls.failed, strict=True))
