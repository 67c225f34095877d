"""When it was by the calendar: stamps of rollouts are of the clocks of their sessions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from pytest_agentbench.metrics.windows import Span
from pytest_agentbench.records import Rollout

ROUNDED_NS = 1_000  # nanoseconds that `started_at` may be off by, being a float: stamps of imported runs count from 1970 themselves


class TurnTime(NamedTuple):
    """A time in a turn."""

    turn: int  # counted from 0
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

    def in_turn(self, at: float) -> TurnTime | None:
        """A time in seconds since 1970, in the turn that it is in; None where others had theirs. Without turns all is one."""
        return TurnTime(0, at)


class TurnCalendar(Calendar):
    """The time of rollouts that took turns with others, from their first turn on, without the turns of the others.

    A time within a turn is as far from the start of that turn as by the calendar; one between two turns is where the next one begins.
    """

    def __init__(self, calendar: Calendar, turns: Mapping[int, Sequence[Span]]) -> None:
        """`calendar` knows the sessions of all turns whose times are known, `turns` has the turns of each session (`Slice.turns`)."""
        super().__init__(calendar._began)
        spans = [(calendar.epoch_ns(session, stamp), end - stamp) for session, own in turns.items() for stamp, end in own]
        known = sorted((start, length) for start, length in spans if start is not None)
        self._starts, self._lengths = [start for start, _ in known], [length for _, length in known]
        self._before = [0, *accumulate(self._lengths)]  # nanoseconds of all turns before the one of the same place

    def epoch_ns(self, session: int, stamp: int | None) -> int | None:
        at = super().epoch_ns(session, stamp)
        place = -1 if at is None else bisect_right(self._starts, at) - 1
        if at is None or place < 0:
            return at
        return self._own_ns(place, min(at - self._starts[place], self._lengths[place]))

    def in_turn(self, at: float) -> TurnTime | None:
        at_ns = round(at * 1e9)
        place = bisect_right(self._starts, at_ns) - 1
        if place < 0 or (within := at_ns - self._starts[place]) > self._lengths[place]:
            return None
        return TurnTime(place, self._own_ns(place, within) / 1e9)

    def _own_ns(self, place: int, within: int) -> int:
        return self._starts[0] + self._before[place] + within
