"""The LLM calls of a run as sessions, which tools for load tests replay: each attempt at a rollout of a scenario is a session."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports.files import ChosenRuns
from pytest_agentbench.metrics.columns import Origin, RolloutPlace
from pytest_agentbench.records import Attempt, LLMCall
from pytest_agentbench.runs.conversations import Conversations, NotKept
from pytest_agentbench.tables import places


class SentCall(NamedTuple):
    """A successful LLM call. Times are in nanoseconds since 1970."""

    id: str
    start: int
    end: int
    call: LLMCall


class ReplaySession(NamedTuple):
    """The calls of one attempt to the backend under test, except for those of judges."""

    id: str
    place: RolloutPlace
    attempt: Attempt
    calls: tuple[SentCall, ...]  # successful calls whose times are known, in the order in which they were sent


def sessions(origin: Origin) -> Iterator[ReplaySession]:
    """Yields a session for each attempt at a rollout of a run, in the order in which rollouts ended. Only one rollout is in memory."""
    for place in places(origin):
        if place.rollout.kind == "scenario":
            for attempt in place.rollout.attempts:
                id = f"{place.rollout.key}-{attempt.attempt}"
                calls = sorted(_sent_calls(id, place, attempt), key=lambda call: call.start)
                yield ReplaySession(id, place, attempt, tuple(calls))


def _sent_calls(session: str, place: RolloutPlace, attempt: Attempt) -> Iterator[SentCall]:
    for number, call in enumerate(call for call in attempt.calls if call.error_kind is None and call.sent_ns is not None):
        start, end = (place.origin.calendar.epoch_ns(attempt.session, stamp) for stamp in (call.sent_ns, call.ended_ns))
        if start is not None and end is not None:
            yield SentCall(f"{session}-{number + 1}", start, end, call)


def first_ms(chosen: ChosenRuns, origin: Origin) -> int:
    """Returns when the first call of a run was sent, milliseconds since 1970. Raises ConfigError if no call has a known time."""
    calls = chosen.tables.calls
    sent = calls.where((calls["run"] == origin.run) & calls["measured"] & (calls["kind"] == "scenario"))["sent_s"]
    if np.isnan(sent).all():
        raise ConfigError(f"{origin.directory} has no call with a known time, so nothing can be replayed; name another run")
    return math.floor(float(np.nanmin(sent)) * 1e3)


class KeptSessions:
    """The sessions of a run (one for each attempt), with the calls whose requests messages.jsonl contains. Counts the other calls."""

    def __init__(self, origin: Origin, apis: Collection[str]) -> None:
        """Takes a run and the names of the APIs whose calls are yielded. Raises ConfigError if the run kept no requests."""
        self.conversations = Conversations(origin.directory)
        self.count = 0  # calls that were yielded
        self.left_out: Counter[str] = Counter()  # reason -> other calls
        self._origin, self._apis = origin, apis

    def __iter__(self) -> Iterator[ReplaySession]:
        """Yields the sessions in which at least one call can be exported. Raises ConfigError at the end if there was none."""
        for session in sessions(self._origin):
            self.left_out["failed"] += len(session.attempt.calls) - len(session.calls)
            calls = tuple(call for call in session.calls if not self._is_left_out(call.call))
            self.count += len(calls)
            if calls:
                yield session._replace(calls=calls)
        if not self.count:
            raise ConfigError(
                f"{self._origin.directory}: no call can be exported, {self.reasons()}; repeat the run with --agentbench-keep=all"
            )

    def _is_left_out(self, call: LLMCall) -> bool:
        reason = "of another API" if call.dialect not in self._apis else "" if self._is_whole(call) else "not kept completely"
        self.left_out[reason] += bool(reason)
        return bool(reason)

    def _is_whole(self, call: LLMCall) -> bool:
        try:
            form = self.conversations.form(call)
            return "text" not in form and not form["left_out"] and bool(self.conversations.body(call))
        except NotKept:
            return False

    def reasons(self) -> str:
        """Returns why calls were left out, for example `2 failed, 1 of another API`. Empty if none was."""
        return ", ".join(f"{count} {reason}" for reason, count in self.left_out.items() if count)

    def note(self) -> Iterator[str]:
        """Yields a sentence on the calls that were left out, if there are any."""
        if reasons := self.reasons():
            yield f"{self._origin.run}: {self.left_out.total()} of {self.count + self.left_out.total()} calls are left out: {reasons}"
