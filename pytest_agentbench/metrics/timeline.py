"""Time as spans: how many overlap, when enough do, who had each instant of a rollout, and when it was by the calendar. Pure functions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from operator import itemgetter
from typing import NamedTuple

from pytest_agentbench.records import JUDGE, Rollout

Span = tuple[int, int]  # start and end, monotonic nanoseconds

#: Who may have an instant of a rollout. Where calls overlap each other or a tool, the first of these has it.
PARTS = ("decoding", "first_token", "tools", "client_queue", "roles", "judge", "agent")


@dataclass(frozen=True)
class InFlight:
    """How many of something were under way at a time."""

    peak: int
    mean: float  # over the time from the first start to the last end


def in_flight(*sessions: Sequence[Span]) -> InFlight | None:
    """Peak and time-weighted mean of how many spans of a session overlap; one that ends when another starts does not overlap it.

    None without spans.
    """
    if not any(sessions):
        return None
    peak = max((count for spans in sessions for _, count in _counts(spans)), default=0)
    busy = sum(end - start for spans in sessions for start, end in spans)
    return InFlight(peak, busy / duration if (duration := sum(map(duration_ns, sessions))) else 0.0)


def at_least(spans: Iterable[Span], count: int) -> list[Span]:
    """The intervals in which at least so many (more than 0) of the spans overlap, in order and apart from each other."""
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
    """The time in which at least 90 % of the concurrency asked for was in flight."""
    return at_least(spans, -(-9 * concurrency // 10))


def total_ns(spans: Iterable[Span]) -> int:
    """The length of spans that do not overlap."""
    return sum(end - start for start, end in spans)


def outer(spans: Sequence[Span]) -> Span | None:
    """From the first start to the last end; None without spans."""
    return (min(start for start, _ in spans), max(end for _, end in spans)) if spans else None


def duration_ns(spans: Sequence[Span]) -> int:
    """From the first start to the last end, ramp, drain and pauses included."""
    return max(end for _, end in spans) - min(start for start, _ in spans) if spans else 0


def overlap_ns(span: Span, others: Sequence[Span]) -> int:
    """How much of a span lies in others, which are in order and apart from each other."""
    start, end = span
    overlap = 0
    for place in range(bisect_right(others, start, key=itemgetter(1)), len(others)):
        if others[place][0] >= end:
            break
        overlap += min(end, others[place][1]) - max(start, others[place][0])
    return overlap


def _counts(spans: Iterable[Span]) -> Iterator[tuple[int, int]]:
    """(time, how many are under way from then on), once for each time at which that may change."""
    steps = sorted(step for start, end in spans if start < end for step in ((start, 1), (end, -1)))
    count = 0
    for at, group in groupby(steps, key=itemgetter(0)):
        count += sum(step for _, step in group)
        yield at, count


def split(rollout: Rollout) -> dict[str, int]:
    """Nanoseconds of a rollout that each of PARTS had; they sum to its duration.

    `decoding`: a call had its first token and no end yet. `first_token`: a call was sent and had none. `tools`: a tool ran.
    `client_queue`: a call was made and not sent. `roles`: an endpoint of its own was asked that
    plays a role. `judge`: a judge was asked. `agent`: none of these. A call without output events
    waits until its end.
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


ROUNDED_NS = 1_000  # nanoseconds that `started_at` may be off by, being a float: stamps of imported runs count from 1970 themselves


class BlockTime(NamedTuple):
    """A time in a turn."""

    block: int  # counted from 0
    at: float  # seconds since 1970


@dataclass
class Calendar:
    """Seconds since 1970 of the stamps of a run. A session has a clock of its own, whose beginning its first rollout tells."""

    _began: dict[int, int] = field(default_factory=dict)  # session -> nanoseconds between 1970 and the zero of its clock

    def learn(self, rollout: Rollout) -> None:
        """Takes the beginning of its session's clock from a rollout that has both times."""
        if rollout.started_ns and rollout.session not in self._began:
            began = round(rollout.started_at * 1e9) - rollout.started_ns
            self._began[rollout.session] = began if abs(began) > ROUNDED_NS else 0

    def epoch_ns(self, session: int, stamp: int | None) -> int | None:
        """Nanoseconds since 1970; None where nobody took the time, or where no rollout tells when its session was."""
        began = self._began.get(session)
        return None if not stamp or began is None else stamp + began

    def epoch_s(self, session: int, stamp: int | None) -> float | None:
        at = self.epoch_ns(session, stamp)
        return None if at is None else at / 1e9

    def in_block(self, at: float) -> BlockTime | None:
        """A time in seconds since 1970, in the turn that it is in; None where others had theirs. Without turns all is one."""
        return BlockTime(0, at)


class BlockCalendar(Calendar):
    """The time of rollouts that took turns with others, from their first turn on, without the turns of the others.

    A time within a turn is as far from the start of that turn as by the calendar; one between two turns is where the next one begins.
    """

    def __init__(self, calendar: Calendar, blocks: Mapping[int, Sequence[Span]]) -> None:
        """`calendar` knows the sessions of all turns whose times are known, `blocks` has the turns of each session (`Slice.turns`)."""
        super().__init__(calendar._began)
        spans = [(calendar.epoch_ns(session, stamp), end - stamp) for session, own in blocks.items() for stamp, end in own]
        known = sorted((start, length) for start, length in spans if start is not None)
        self._starts, self._lengths = [start for start, _ in known], [length for _, length in known]
        self._before = [0, *accumulate(self._lengths)]  # nanoseconds of all turns before the one of the same place

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
