"""Spans of time: their overlaps, the split of a rollout's time among activities, and the conversion of timestamps to real time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from operator import itemgetter
from typing import NamedTuple

from pytest_agentbench.records import JUDGE, Rollout

Span = tuple[int, int]  # start and end, monotonic nanoseconds

#: Activities of a rollout. If several happen at the same time, the time counts for the first of these.
PARTS = ("decoding", "first_token", "tools", "client_queue", "roles", "judge", "agent")

#: Activity -> its name in reports.
PART_NAMES = {
    "decoding": "decoding",
    "first_token": "waiting for the first token",
    "tools": "tools",
    "client_queue": "client queue",
    "roles": "other roles",
    "judge": "judge",
    "agent": "agent",
}


@dataclass(frozen=True)
class InFlight:
    """The peak and the mean number of rollouts, or of LLM calls, that ran at the same time."""

    peak: int  # greatest number at a time
    mean: float  # mean number from the first start to the last end


def in_flight(*sessions: Sequence[Span]) -> InFlight | None:
    """Returns the peak and the time-weighted mean of the number of spans that overlap in a session. None without spans.

    A span that ends when another one starts does not overlap it.
    """
    if not any(sessions):
        return None
    peak = max((count for spans in sessions for _, count in _counts(spans)), default=0)
    busy = sum(end - start for spans in sessions for start, end in spans)
    return InFlight(peak, busy / duration if (duration := sum(map(duration_ns, sessions))) else 0.0)


def at_least(spans: Iterable[Span], count: int) -> list[Span]:
    """Returns the disjoint, ordered intervals in which at least `count` spans overlap. `count` has to be positive."""
    intervals: list[Span] = []
    opened: int | None = None
    for at, under_way in _counts(spans):
        if under_way >= count and opened is None:
            opened = at
        elif under_way < count and opened is not None:
            intervals.append((opened, at))
            opened = None
    return intervals


def steady(spans: Iterable[Span], concurrency: int) -> list[Span]:
    """Returns the intervals in which the number of overlapping spans is at least 90 % of the concurrency."""
    return at_least(spans, -(-9 * concurrency // 10))


def total_ns(spans: Iterable[Span]) -> int:
    """Returns the total length, in nanoseconds, of spans that do not overlap."""
    return sum(end - start for start, end in spans)


def outer(spans: Sequence[Span]) -> Span | None:
    """Returns the span from the first start to the last end of some spans. None without spans."""
    return (min(start for start, _ in spans), max(end for _, end in spans)) if spans else None


def duration_ns(spans: Sequence[Span]) -> int:
    """Returns the nanoseconds from the first start to the last end of some spans, including pauses between them. 0 without spans."""
    return max(end for _, end in spans) - min(start for start, _ in spans) if spans else 0


def overlap_ns(span: Span, others: Sequence[Span]) -> int:
    """Returns how much of a span lies in other spans, which are disjoint and ordered."""
    start, end = span
    overlap = 0
    for place in range(bisect_right(others, start, key=itemgetter(1)), len(others)):
        if others[place][0] >= end:
            break
        overlap += min(end, others[place][1]) - max(start, others[place][0])
    return overlap


def _counts(spans: Iterable[Span]) -> Iterator[tuple[int, int]]:
    """Yields (time, number of spans from then on) for each time at which the number may change."""
    steps = sorted(step for start, end in spans if start < end for step in ((start, 1), (end, -1)))
    count = 0
    for at, group in groupby(steps, key=itemgetter(0)):
        count += sum(step for _, step in group)
        yield at, count


def part_names(streamed: bool) -> Mapping[str, str]:
    """Returns PART_NAMES for rollouts with streamed calls, or for those without any, in which no first token was seen."""
    return PART_NAMES if streamed else {**PART_NAMES, "first_token": "waiting for the answer"}


def split(rollout: Rollout) -> dict[str, int]:
    """Returns how many nanoseconds of a rollout each activity took. The sum is the duration of the rollout.

    - During `decoding`, a call had its first token and had not ended.
    - During `first_token`, a call was sent and had no token yet. A call without output events is in this state until its end.
    - During `tools`, a tool ran.
    - During `client_queue`, a call was made and not sent yet.
    - During `roles`, a call of a role to another endpoint was in progress.
    - During `judge`, a call of a judge was in progress.
    - The activity `agent` is the time of none of these.

    If several happen at the same time, the time counts for the first of these in the order of PARTS.
    """
    steps: list[tuple[int, str, int]] = [(rollout.started_ns, "agent", 1), (rollout.ended_ns, "agent", -1)]
    for part, start, end in _parts(rollout):
        within = max(start, rollout.started_ns), min(end, rollout.ended_ns)
        if within[0] < within[1]:
            steps += [(within[0], part, 1), (within[1], part, -1)]
    parts, active = dict.fromkeys(PARTS, 0), dict.fromkeys(PARTS, 0)
    last = rollout.started_ns
    for at, part, step in sorted(steps):
        owner = next((each for each in PARTS if active[each]), "agent")
        parts[owner] += at - last
        active[part] += step
        last = at
    return parts


def _parts(rollout: Rollout) -> Iterator[tuple[str, int, int]]:
    for call in rollout.calls:
        sent = call.ended_ns if call.sent_ns is None else call.sent_ns
        first = next((chunk.at_ns for chunk in call.output), call.ended_ns)
        yield "client_queue", call.begun_ns, sent
        yield "first_token", sent, first
        yield "decoding", first, call.ended_ns
    for call in rollout.other_calls:
        yield "judge" if call.role == JUDGE else "roles", call.begun_ns, call.ended_ns
    for tool in rollout.tool_calls:
        if tool.started_ns is not None and tool.ended_ns is not None:
            yield "tools", tool.started_ns, tool.ended_ns


#: Rounding error of `started_at`, a float, in nanoseconds. A smaller difference means that timestamps count from 1970 (imported runs).
ROUNDED_NS = 1_000


class BlockTime(NamedTuple):
    """A point in time, with the block in which it lies (a stretch in which rollouts of one arm, or of one group, ran)."""

    block: int  # index of the block, counted from 0
    at: float  # seconds since 1970


@dataclass
class Calendar:
    """Converts the timestamps of a run to time since 1970. Each session has its own clock; its offset is learnt from a rollout."""

    _began: dict[int, int] = field(default_factory=dict)  # session -> nanoseconds between 1970 and the zero of its clock

    def learn(self, rollout: Rollout) -> None:
        """Learns the offset of a session's clock from the session's first rollout with a known start. Other rollouts change nothing."""
        if rollout.started_ns and rollout.session not in self._began:
            began = round(rollout.started_at * 1e9) - rollout.started_ns
            self._began[rollout.session] = began if abs(began) > ROUNDED_NS else 0

    def epoch_ns(self, session: int, stamp: int | None) -> int | None:
        """Returns a session's timestamp as nanoseconds since 1970. None if it, or the offset of the session's clock, is unknown."""
        began = self._began.get(session)
        return None if not stamp or began is None else stamp + began

    def epoch_s(self, session: int, stamp: int | None) -> float | None:
        at = self.epoch_ns(session, stamp)
        return None if at is None else at / 1e9

    def in_block(self, at: float) -> BlockTime | None:
        """Returns a time (seconds since 1970) with its block, here always block 0. Subclasses return None for a time in no block."""
        return BlockTime(0, at)


class BlockCalendar(Calendar):
    """A calendar of rollouts in blocks (see `BlockTime`). It starts at their first block and leaves out the time between their blocks.

    Within a block, times have their real distance from the start of the block. A time between two blocks becomes the start of the next.
    """

    def __init__(self, calendar: Calendar, blocks: Mapping[int, Sequence[Span]]) -> None:
        """Prepares the times of the blocks. `calendar` converts times of the run; `blocks` maps sessions to the spans of their blocks."""
        super().__init__(calendar._began)
        spans = [(calendar.epoch_ns(session, stamp), end - stamp) for session, own in blocks.items() for stamp, end in own]
        known = sorted((start, length) for start, length in spans if start is not None)
        self._starts, self._lengths = [start for start, _ in known], [length for _, length in known]
        self._before = [0, *accumulate(self._lengths)]  # total nanoseconds of the blocks before each block

    def epoch_ns(self, session: int, stamp: int | None) -> int | None:
        at = super().epoch_ns(session, stamp)
        place = -1 if at is None else bisect_right(self._starts, at) - 1
        if at is None or place < 0:
            return at
        return self._own_ns(place, min(at - self._starts[place], self._lengths[place]))

    def in_block(self, at: float) -> BlockTime | None:
        at_ns = round(at * 1e9)
        place = bisect_right(self._starts, at_ns) - 1
        if place < 0 or (within := at_ns - self._starts[place]) > self._lengths[place]:
            return None
        return BlockTime(place, self._own_ns(place, within) / 1e9)

    def _own_ns(self, place: int, within: int) -> int:
        return self._starts[0] + self._before[place] + within
