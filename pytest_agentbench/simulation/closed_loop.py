"""Rollouts that begin when others end, as where so many are in flight at a time: on a slower stack they begin later.

A trace has the times at which rollouts began in the run. Replayed like that on a slower stack, more and more of them would be in flight,
and a setting would look far worse than it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_agentbench.exports.mooncake import timed_calls
from pytest_agentbench.lib.file_system import write_whole
from pytest_agentbench.metrics.columns import Origin
from pytest_agentbench.records import Json
from pytest_agentbench.tables import places


@dataclass(frozen=True)
class AttemptSpan:
    """The calls of an attempt; nanoseconds since 1970."""

    starts: Mapping[str, int]  # call -> when it was sent
    last: str  # the call that ended last
    end: int

    @property
    def start(self) -> int:
        return min(self.starts.values())


def close_loop(trace: Path, origin: Origin) -> None:
    """Makes calls that have a time wait for the last call of the rollout in whose place theirs came."""
    waits = dict(_waits([*_sessions(origin)]))
    rows = map(json.loads, trace.read_text(encoding="utf-8").splitlines())
    write_whole(trace, "".join(f"{json.dumps(_waiting(row, waits))}\n" for row in rows))


def _sessions(origin: Origin) -> Iterator[AttemptSpan]:
    for place in places(origin):
        for attempt in place.rollout.attempts:
            if place.rollout.kind == "scenario" and (calls := [*timed_calls(place, attempt)]):
                last = max(calls, key=lambda call: call.end)
                yield AttemptSpan({call.id: call.start for call in calls}, last.id, last.end)


def _waits(sessions: Sequence[AttemptSpan]) -> Iterator[tuple[str, tuple[str, float]]]:
    """Call -> the call that it waits for, and the milliseconds in between."""
    for session, before in predecessors(sessions):
        yield from ((call, (before.last, (start - before.end) / 1e6)) for call, start in session.starts.items())


def predecessors(sessions: Sequence[AttemptSpan]) -> Iterator[tuple[AttemptSpan, AttemptSpan]]:
    """Each session with the one in whose place it came: that which ended last before it began, and has no successor yet."""
    free = sorted(sessions, key=lambda session: session.end, reverse=True)
    over: list[AttemptSpan] = []
    for session in sorted(sessions, key=lambda session: session.start):
        while free and free[-1].end <= session.start:
            over.append(free.pop())
        if over:
            yield session, over.pop()


def _waiting(row: Json, waits: Mapping[str, tuple[str, float]]) -> Json:
    """A row of a trace, which waits where it had a time."""
    if "timestamp" not in row or row["request_id"] not in waits:
        return row
    call, delay = waits[row["request_id"]]
    return {**{name: value for name, value in row.items() if name != "timestamp"}, "wait_for": [call], "delay": delay, "tool_wait_ms": 0.0}
