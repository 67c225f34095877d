"""When and why calls were slow: the calls in flight, spikes of concurrency and their effect, and the causes of the slowest calls.

The usual concurrency is the number of calls that was not exceeded for 90 % of the time with any call in flight. A call is attributed to
the moment at which it was sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from pytest_agentbench.metrics.columns import FrameTable
from pytest_agentbench.metrics.performance import SlowCall
from pytest_agentbench.records import ERROR_KINDS

if TYPE_CHECKING:
    from pytest_agentbench.stats.series import Counts, Floats, Mask


class Levels(NamedTuple):
    """The number of concurrent spans over time: `counts[i]` from `times[i]` to `times[i + 1]`.

    A span that ends when another one starts does not overlap it.
    """

    times: Floats  # sorted, without duplicates
    counts: Counts  # the last is 0

    @classmethod
    def of(cls, starts: Floats, ends: Floats) -> Self:
        """Counts how many spans overlap at each time. No span may end before it starts."""
        times, places = np.unique(np.concatenate([starts, ends]), return_inverse=True)
        steps = np.repeat([1.0, -1.0], [len(starts), len(ends)])
        return cls(times, np.cumsum(np.bincount(places, steps, len(times))).round().astype(np.int64))

    @property
    def lengths(self) -> Floats:
        """The time between consecutive `times`, in the same unit: how long each of the `counts` lasted, except the last one."""
        return np.diff(self.times)

    def at(self, times: Floats) -> Counts:
        """Returns the number of spans at each of some times. A span that starts at that time counts."""
        places = np.searchsorted(self.times, times, "right") - 1
        return np.where(places < 0, 0, self.counts[places])

    def duration(self) -> dict[int, float]:
        """Returns number of concurrent spans -> total time with that number, in the unit of `times`. Numbers are in ascending order."""
        if len(self.times) < 2:
            return {}
        levels, places = np.unique(self.counts[:-1], return_inverse=True)
        return dict(zip(levels.tolist(), np.bincount(places, self.lengths).tolist(), strict=True))


def level_at(durations: dict[int, float], q: float) -> int:
    """Returns the number of concurrent spans that was not exceeded for q % of the time, or 0 if `durations` is empty."""
    total, so_far, last = sum(durations.values()), 0.0, 0
    for level, duration in durations.items():
        so_far, last = so_far + duration, level
        if total > 0 and so_far >= q / 100 * total:
            break
    return last if total > 0 else 0


USUAL = 90  # percent of the time
MOST = 5  # maximum number of spikes


@dataclass(frozen=True)
class Latencies:
    """The number of calls in a group, and their median latencies, which only successful calls have."""

    calls: int
    ttft_ms: float | None
    e2e_ms: float | None


@dataclass(frozen=True)
class Spike:
    """A span in which more calls were in flight than usual."""

    start_s: float  # after the first call of the run was sent
    duration_s: float
    peak: int  # calls in flight
    sent: Latencies  # latencies of the calls sent in the spike


@dataclass(frozen=True)
class ConcurrencyLevel:
    """The time during which `least` to `most` calls were in flight, as a share, and the latencies of the calls sent in it."""

    least: int
    most: int
    share: float  # share of the time with any call in flight
    sent: Latencies  # latencies of the calls sent at this level; each call counts itself


@dataclass(frozen=True)
class Concurrency:
    """The numbers of calls in flight over the time of a run, and its spikes. A call is in flight from its send to its end."""

    usual: int
    peak: int
    share: float  # share of spikes in the time with any call in flight
    count: int  # number of spikes
    spikes: tuple[Spike, ...]  # the longest spikes, in chronological order
    inside: Latencies  # calls sent in spikes
    outside: Latencies  # all other calls
    levels: tuple[ConcurrencyLevel, ...]


def concurrency(calls: FrameTable) -> Concurrency | None:
    """Counts the calls in flight in a table of calls. Returns None if no call was sent."""
    sent = calls.where(calls["sent_s"] > 0)
    if not len(sent):
        return None
    levels = Levels.of(sent["sent_s"], sent["ended_s"])
    in_flight, durations = levels.at(sent["sent_s"]), {level: length for level, length in levels.duration().items() if level}
    usual, total = level_at(durations, USUAL), sum(durations.values())
    spans = [*_above(levels, usual)]
    longest = sorted(sorted(spans, key=lambda span: span[0] - span[1])[:MOST])
    return Concurrency(
        usual=usual,
        peak=max(durations, default=0),
        share=sum(length for level, length in durations.items() if level > usual) / total if total else 0.0,
        count=len(spans),
        spikes=tuple(_spike(sent, levels, span) for span in longest),
        inside=_latencies(sent, in_flight > usual),
        outside=_latencies(sent, in_flight <= usual),
        levels=tuple(_levels(sent, in_flight, durations)),
    )


def _above(levels: Levels, usual: int) -> Iterator[tuple[float, float]]:
    """Yields (start, end) of each span in which more calls than usual were in flight."""
    for above, places in groupby(range(len(levels.counts)), key=lambda place: levels.counts[place] > usual):
        if above:
            inside = [*places]
            yield float(levels.times[inside[0]]), float(levels.times[inside[-1] + 1])


def _spike(sent: FrameTable, levels: Levels, span: tuple[float, float]) -> Spike:
    start, end = span
    counts = levels.counts[(levels.times >= start) & (levels.times < end)]
    within = (sent["sent_s"] >= start) & (sent["sent_s"] < end)
    return Spike(start - float(levels.times[0]), end - start, int(counts.max()), _latencies(sent, within))


def _levels(sent: FrameTable, in_flight: Counts, durations: dict[int, float]) -> Iterator[ConcurrencyLevel]:
    """Yields the levels with 1, 2, 3 to 4, 5 to 8, ... calls in flight. Levels that never occurred are left out."""
    least, total = 1, sum(durations.values())
    while total and least <= max(durations):
        most = 1 if least == 1 else 2 * (least - 1)
        share = sum(length for level, length in durations.items() if least <= level <= most) / total
        if share:
            yield ConcurrencyLevel(least, most, share, _latencies(sent, (in_flight >= least) & (in_flight <= most)))
        least = most + 1


def _latencies(sent: FrameTable, mask: Mask) -> Latencies:
    return Latencies(int(mask.sum()), _median(sent["ttft_ms"][mask]), _median(sent["e2e_ms"][mask]))


def _median(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else None


MUCH = 1.5  # A value is high if it is this many times the median.

#: Parts of the time of a call, in chronological order.
PARTS = ("client_queue", "rate_limit", "first_token", "decoding")


@dataclass(frozen=True)
class Explanation:
    """One of the slowest calls, with a sentence that says why it was slow."""

    call: SlowCall
    in_flight: int  # calls in flight when it was sent, including itself; 0 if unknown
    why: str


def explained(calls: FrameTable, slow: Sequence[tuple[int, SlowCall]]) -> tuple[Explanation, ...]:
    """Explains why the slowest calls were slow. `slow` has (row in the table of all calls, call) of each."""
    usual = _Usual(calls)
    return tuple(Explanation(call, int(usual.in_flight[place]), usual.why(place)) for place, call in slow)


class _Usual:
    """The parts of the duration of all calls. `why` explains one call by comparing its parts with their medians."""

    def __init__(self, calls: FrameTable) -> None:
        self.calls = calls
        first = np.where(np.isnan(calls["ttft_ms"]), calls["e2e_ms"], calls["ttft_ms"])
        self.parts = dict(zip(PARTS, (calls["client_queue_ms"], calls["held_ms"], first, calls["e2e_ms"] - first), strict=True))
        self.good = np.array([kind is None for kind in calls["error_kind"]], np.bool_)
        self.uncached = calls["prompt_tokens"] - calls["cached_tokens"]
        self.in_flight, self.usual_in_flight = _in_flight(calls)

    def why(self, place: int) -> str:
        row = {name: values[place] for name, values in self.calls.columns.items()}
        if row["error_kind"] is not None:
            return f"failed: {ERROR_KINDS.get(row['error_kind'], row['error_kind'])}"
        above = {part: values[place] - self._usual(values) for part, values in self.parts.items() if not np.isnan(values[place])}
        slowest = max(above, key=lambda part: above[part], default=None)
        match slowest if slowest and above[slowest] > 0 else None:
            case "client_queue":
                return "it waited in the client before it was sent"
            case "rate_limit":
                return "the backend's rate limit held it back"
            case "first_token":
                return self._why_late(place, row)
            case "decoding":
                return self._why_long(place, row)
        return "no part of it took longer than usual"

    def _why_late(self, place: int, row: dict[str, Any]) -> str:
        """Returns why the first token was late."""
        if np.isnan(row["ttft_ms"]):
            return "it did not stream, so the time of its first token is unknown"
        for values, what in ((self.uncached, "prompt tokens that were not in the cache"), (self.calls["prompt_tokens"], "prompt tokens")):
            if values[place] > MUCH * (usual := self._usual(values)):
                return f"its first token was late: {values[place]:,.0f} {what}, usually {usual:,.0f}"
        if self.in_flight[place] > self.usual_in_flight:
            return f"its first token was late: {self.in_flight[place]} calls were in flight, usually {self.usual_in_flight} or fewer"
        return "its first token was late, but neither its prompt nor the calls in flight explain it"

    def _why_long(self, place: int, row: dict[str, Any]) -> str:
        """Returns why the time between the first token and the end was long."""
        tokens, gap, pace = row["output_tokens"], row["itl_max_ms"], self.calls["tpot_ms"]
        if gap > self.parts["decoding"][place] / 2 and row["output_events"] > 2:
            return f"it stalled: one gap of {gap:,.1f} ms"
        if tokens > MUCH * (usual := self._usual(self.calls["output_tokens"].astype(np.float64))):
            return f"a long answer: {tokens:,} tokens, usually {usual:,.0f}"
        if pace[place] > self._usual(pace):
            return f"slow tokens: {pace[place]:,.1f} ms each, usually {self._usual(pace):,.1f}"
        return "the end of its answer was late"

    def _usual(self, values: Floats) -> float:
        """Returns the median of `values` (one per call) over successful calls. Returns NaN, which no value exceeds, if none is known."""
        known = values[self.good & ~np.isnan(values)]
        return float(np.median(known)) if len(known) else float("nan")


def _in_flight(calls: FrameTable) -> tuple[Counts, int]:
    """Returns for each call how many were in flight when it was sent, and the usual number. 0 means unknown."""
    was_sent = ~np.isnan(calls["sent_s"])  # NaN if the time is unknown
    counts = np.zeros(len(calls), np.int64)
    if not was_sent.any():
        return counts, 0
    levels = Levels.of(calls["sent_s"][was_sent], calls["ended_s"][was_sent])
    counts[was_sent] = levels.at(calls["sent_s"][was_sent])
    return counts, level_at({level: length for level, length in levels.duration().items() if level}, USUAL)
