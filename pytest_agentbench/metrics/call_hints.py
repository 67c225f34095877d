"""Hints learnt from recorded calls: what to expect of a call, by its role and its number in the session, and how right that was.

A session is what a router sees as one: the calls of one role in one attempt at a rollout that reached the backend under test.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pytest_agentbench.records import LLMCall, Rollout, arm_of

#: Status of rollouts that have made all their calls. Others ended early, so the number of their calls says nothing.
COMPLETE = ("ok", "limit")

#: Fewest calls from which quantiles are learnt. A turn with fewer calls is joined with the turns before it.
FEWEST = 10

#: Turns that a table has for a role. Later calls get the hints of the last one.
MOST_TURNS = 200

MS = 1e6  # nanoseconds


@dataclass(frozen=True)
class HintRow:
    """What to expect of the calls of a role that have the same number in their sessions."""

    role: str  # role that makes the calls; empty for the agent itself
    turn: int  # number of the call in its session, counted from 1
    calls: int  # recorded calls with this number
    remaining: float  # mean number of calls of the session that follow
    tokens_p50: float  # median of the output tokens
    tokens_p90: float  # 90th percentile of the output tokens
    next_ms: float | None  # median of the milliseconds from the answer to the next call of the session; None if none has a next call


class CallOfSession(NamedTuple):
    """A call of a session, and what a hint should have said about it."""

    call: LLMCall
    turn: int  # number of the call in its session, counted from 1
    remaining: int  # calls of the session that follow
    next_ms: float | None  # milliseconds from the answer to the next call; None for the last call, and for calls at the same time

    @property
    def tokens(self) -> int | None:
        """The output tokens, or None if the call failed or the server does not report them."""
        return self.call.completion_tokens if self.call.error_kind is None else None


def calls_at_router(rollout: Rollout) -> Iterator[LLMCall]:
    """Yields the calls of the last attempt at a rollout that reached the router of the backend under test, also those of judges."""
    return (call for call in (*rollout.calls, *rollout.other_calls) if not call.endpoint and call.dialect and call.sent_ns is not None)


def sessions(rollout: Rollout) -> Iterator[tuple[str, list[CallOfSession]]]:
    """Yields the role and the calls of each session of a rollout. Only the last attempt of a complete rollout has sessions."""
    if rollout.kind != "scenario" or rollout.status not in COMPLETE:
        return
    by_role: defaultdict[str, list[LLMCall]] = defaultdict(list)
    for call in sorted(calls_at_router(rollout), key=lambda call: call.received_ns):
        by_role[call.role].append(call)
    for role, calls in by_role.items():
        last = len(calls) - 1
        yield (
            role,
            [
                CallOfSession(call, place + 1, last - place, _pause(call, calls[place + 1]) if place < last else None)
                for place, call in enumerate(calls)
            ],
        )


def _pause(call: LLMCall, following: LLMCall) -> float | None:
    return (following.begun_ns - call.ended_ns) / MS if following.begun_ns >= call.ended_ns else None


class HintLearner:
    """Collects the calls of rollouts, and makes the rows of a table of hints from them."""

    def __init__(self) -> None:
        self.sessions = 0
        self._calls: defaultdict[str, defaultdict[int, list[CallOfSession]]] = defaultdict(lambda: defaultdict(list))

    def add(self, rollout: Rollout) -> None:
        """Adds the calls of a rollout."""
        for role, calls in sessions(rollout):
            self.sessions += 1
            for call in calls:
                if call.tokens is not None:
                    self._calls[role][call.turn].append(call)

    def rows(self) -> list[HintRow]:
        """Returns the rows of all roles, by role and turn."""
        return [row for role in sorted(self._calls) for row in self._rows(role)]

    def _rows(self, role: str) -> Iterator[HintRow]:
        turns = self._calls[role]
        for turn in sorted(turns)[:MOST_TURNS]:
            own, near = turns[turn], _near(turns, turn)
            tokens = [float(call.tokens or 0) for call in near]
            pauses = [call.next_ms for call in near if call.next_ms is not None]
            remaining = sum(call.remaining for call in own) / len(own)
            next_ms = round(quantile(pauses, 0.5), 1) if pauses else None
            yield HintRow(role, turn, len(own), round(remaining, 2), quantile(tokens, 0.5), quantile(tokens, 0.9), next_ms)


def _near(turns: dict[int, list[CallOfSession]], turn: int) -> list[CallOfSession]:
    """Returns the calls of a turn, and those of the turns before it as long as there are fewer than FEWEST."""
    near: list[CallOfSession] = []
    for each in sorted((each for each in turns if each <= turn), reverse=True):
        near += turns[each]
        if len(near) >= FEWEST:
            break
    return near


def quantile(values: Iterable[float], share: float) -> float:
    """Returns the smallest of some values that is not less than this share of them. There must be at least one."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]


@dataclass(frozen=True)
class HintUse:
    """How right the [hints](hints.md#how-right-hints-were) of a role's calls were. Errors are means of absolute differences."""

    arm: str  # name of the [arm](ab.md); empty without arms
    role: str  # role that made the calls; empty for the agent itself
    calls: int  # calls with a hint, in complete rollouts
    covered: float | None  # part of the calls whose output had at most the hinted tokens; null if none was hinted and counted
    tokens_error: float | None  # error of the usual output tokens, or of the hinted ones if a usual number was not learnt; null if unknown
    remaining_error: float | None  # error of the number of calls of the session that follow; null if none was hinted
    next_error_ms: float | None  # error of the time from an answer to the next call, milliseconds; null if none was hinted


@dataclass
class _Errors:
    calls: int = 0
    covered: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)
    remaining: list[float] = field(default_factory=list)
    next_ms: list[float] = field(default_factory=list)

    def add(self, expected: CallOfSession) -> None:
        hints = expected.call.hints
        if hints is None:
            return
        self.calls += 1
        if hints.tokens is not None and expected.tokens is not None:
            usual = hints.tokens if hints.usual_tokens is None else hints.usual_tokens
            self.covered.append(float(expected.tokens <= hints.tokens))
            self.tokens.append(abs(expected.tokens - usual))
        if hints.remaining is not None:
            self.remaining.append(abs(expected.remaining - hints.remaining))
        if hints.next_ms is not None and expected.next_ms is not None:
            self.next_ms.append(abs(expected.next_ms - hints.next_ms))


class HintAccuracy:
    """Compares the hints that calls had with what happened."""

    def __init__(self, arms: Iterable[str] = ()) -> None:
        """Takes the arms that are counted separately."""
        self._arms = {*arms}
        self._errors: defaultdict[tuple[str, str], _Errors] = defaultdict(_Errors)

    def add(self, rollout: Rollout) -> None:
        """Adds the calls of a rollout."""
        arm = arm_of(rollout.variant)
        for role, calls in sessions(rollout):
            for call in calls:
                self._errors[arm if arm in self._arms else "", role].add(call)

    def uses(self) -> tuple[HintUse, ...]:
        """Returns how right the hints of each arm and role were. Roles without hints are left out."""
        return tuple(
            HintUse(arm, role, each.calls, *map(_mean, (each.covered, each.tokens, each.remaining, each.next_ms)))
            for (arm, role), each in sorted(self._errors.items())
            if each.calls
        )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
