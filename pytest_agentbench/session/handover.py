"""What a pool would leave to the next one if it died now, by what it has told."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pytest_agentbench.records import Json, RolloutKey


class Handover:
    """Of one session. What is told is noted in the thread that hears the pool."""

    def __init__(self) -> None:
        self.interrupted = 0  # attempts that ran when a part of the session died, and were run again
        self.unrecorded = 0  # LLM calls of whom the tap told, and that are in no record handed to the journal
        self.round: list[RolloutKey] = []  # of trials, which no test asks for: under way, and not known to be over
        self._plan: list[RolloutKey] | None = None
        self._read: Counter[RolloutKey] = Counter()  # how many tests have got each rollout
        self._in_flight: dict[RolloutKey, int] = {}  # -> when its attempt began, monotonic nanoseconds
        self._attempts: dict[RolloutKey, list[tuple[Json, bool]]] = {}  # of rollouts under way: the failed ones, and whether interrupted
        self._tokens: dict[str, Json] = {}  # of the tap, that are open -> whose they are
        self._labels: dict[str, Json] = {}  # ids of rollouts that are over, and not released -> endpoint
        self._tally: Json = {}

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

    def note(self, message: Json) -> bool:
        """Takes what is for it; whether it was."""
        match message:
            case {"op": "read", "key": key}:
                self._read[RolloutKey(*key)] += 1
            case {"op": "begun", "key": key}:
                self._in_flight[RolloutKey(*key)] = time.monotonic_ns()
            case {"op": "failed", "key": key, "attempt": attempt, "interrupted": interrupted}:
                self._in_flight.pop(RolloutKey(*key), None)
                self._attempts.setdefault(RolloutKey(*key), []).append((attempt, interrupted))
                self.interrupted += interrupted
            case {"op": "opened", "token": token, "tally": tally}:
                self._tokens[token] = {name: message[name] for name in ("key", "lent", "label")}
                self._tally = tally
            case {"op": "closed", "token": token, "calls": calls, "unreleased": unreleased, "tally": tally}:
                self._closed(token, calls, unreleased=unreleased)
                self._tally = tally
            case {"op": "released", "id": id, "tally": tally}:
                self._labels.pop(id, None)
                self._tally = tally
            case _:
                return False
        return True

    def _closed(self, token: str, calls: int, *, unreleased: bool) -> None:
        self.unrecorded += calls
        facts = self._tokens.pop(token, None)
        if unreleased and facts is not None and facts["label"]:
            self._labels[facts["label"]["id"]] = facts["label"]["endpoint"]

    def to_wire(self, why: str, alone: Collection[RolloutKey], ends: Mapping[RolloutKey, Json]) -> Json:
        """For a pool that begins; `why` the one before it ended, which rollouts run `alone`, and how those end that do not run again."""
        inherited: dict[str, Any] = {
            "why": why,
            "plan": None if self._plan is None else [*(Counter(self._plan) - self._read).elements()],
            "round": self.round,
            "alone": [*alone],
            "ends": [*ends.items()],
            "in_flight": [*self._in_flight.items()],
            "attempts": [*self._attempts.items()],
            "tokens": [*self._tokens.items()],
            "labels": self._labels,
            "tally": self._tally,
        }
        self._in_flight = {}
        return inherited
