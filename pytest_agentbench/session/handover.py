"""What a pool would leave to the next one if it died now, by what it has told."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence
from typing import assert_never

from pytest_agentbench.records import Rollout, RolloutKey
from pytest_agentbench.rollouts.inherited import (
    AttemptBegun,
    AttemptFailed,
    Inherited,
    InterruptedRollout,
    LabelReleased,
    OpenLabel,
    OpenToken,
    RolloutEnd,
    RolloutRead,
    RolloutTally,
    StateNote,
    TokenClosed,
    TokenOpened,
)


class Handover:
    """Of one session. What is told is noted in the thread that hears the pool."""

    def __init__(self) -> None:
        self.interrupted = 0  # attempts that ran when a part of the session died, and were run again
        self.unrecorded = 0  # LLM calls of whom the tap told, and that are in no record handed to the journal
        self.round: list[RolloutKey] = []  # of trials, which no test asks for: under way, and not known to be over
        self._plan: list[RolloutKey] | None = None
        self._read: Counter[RolloutKey] = Counter()  # how many tests have got each rollout
        self._in_flight: dict[RolloutKey, int] = {}  # -> when its attempt began, monotonic nanoseconds
        self._attempts: dict[RolloutKey, list[AttemptFailed]] = {}  # of rollouts under way
        self._tokens: dict[str, OpenToken] = {}
        self._labels: dict[str, OpenLabel] = {}  # by their ids, of rollouts that are over, and not released
        self._tally = RolloutTally()

    @property
    def in_flight(self) -> set[RolloutKey]:
        return set(self._in_flight)

    def planned(self, keys: Sequence[RolloutKey]) -> None:
        self._plan = [*keys]

    def over(self, key: RolloutKey) -> None:
        """A rollout does not run any more, whether or not its record can be written."""
        self._in_flight.pop(key, None)

    def ended(self, key: RolloutKey, calls: int) -> None:
        """A rollout is in the journal, with so many LLM calls."""
        self._attempts.pop(key, None)
        self.unrecorded -= calls

    def note(self, message: StateNote) -> None:
        """Takes down what the pool tells of its state."""
        match message:
            case RolloutRead(key):
                self._read[key] += 1
            case AttemptBegun(key):
                self._in_flight[key] = time.monotonic_ns()
            case AttemptFailed(key):
                self._in_flight.pop(key, None)
                self._attempts.setdefault(key, []).append(message)
                self.interrupted += message.interrupted
            case TokenOpened(opened, tally):
                self._tokens[opened.token] = opened
                self._tally = tally
            case TokenClosed():
                self._closed(message)
                self._tally = message.tally
            case LabelReleased(id, tally):
                self._labels.pop(id, None)
                self._tally = tally
            case _:
                assert_never(message)

    def _closed(self, closed: TokenClosed) -> None:
        self.unrecorded += closed.calls
        opened = self._tokens.pop(closed.token, None)
        if closed.unreleased and opened is not None and opened.label is not None:
            self._labels[opened.label.id] = opened.label

    def leave(self, why: str, alone: Collection[RolloutKey], ends: Collection[RolloutEnd | Rollout]) -> Inherited:
        """Returns what a new pool inherits of one that ended for the reason `why`.

        `alone` are the rollouts that run alone from now on, `ends` those that do not run again.
        """
        inherited = Inherited(
            why=why,
            plan=None if self._plan is None else tuple((Counter(self._plan) - self._read).elements()),
            round=tuple(self.round),
            alone=tuple(alone),
            ends=tuple(each for each in ends if isinstance(each, RolloutEnd)),
            unscored=tuple(each for each in ends if isinstance(each, Rollout)),
            in_flight=tuple(InterruptedRollout(key, began) for key, began in self._in_flight.items()),
            attempts=tuple(attempt for attempts in self._attempts.values() for attempt in attempts),
            tokens=tuple(self._tokens.values()),
            labels=tuple(self._labels.values()),
            tally=self._tally,
        )
        self._in_flight = {}
        return inherited
