"""What a pool that died leaves to the next one: rollouts that were in flight, addresses that are still open, and what it knew."""

from __future__ import annotations

import dataclasses
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pytest_agentbench.errors import InfraError
from pytest_agentbench.lib import codec
from pytest_agentbench.records import Attempt, Json, LLMCall, Rollout, RolloutKey
from pytest_agentbench.rollouts.pool.addresses import Addresses
from pytest_agentbench.rollouts.pool.announcements import RolloutTally
from pytest_agentbench.rollouts.pool.scheduler import Scheduler
from pytest_agentbench.suites.suite import PoolSuite, Scenario


@dataclass
class AttemptCalls:
    """That a pool's attempt had made when the pool died."""

    measured: list[LLMCall] = field(default_factory=list)
    others: list[LLMCall] = field(default_factory=list)

    def add(self, calls: Iterable[LLMCall]) -> None:
        for call in calls:
            (self.measured if call.measured else self.others).append(call)


class Inheritance:
    """As the controller wrote it down; nothing for the first pool of a session."""

    def __init__(self, left: Json | None, session: int) -> None:
        """`session` is the number of the session within its run."""
        self._left, self._session = left or {}, session
        self._calls: defaultdict[RolloutKey, AttemptCalls] = defaultdict(AttemptCalls)
        #: Rollouts that are not run again, because of what they do to the session -> how they end.
        self.ends: dict[RolloutKey, Json] = {RolloutKey(*key): end for key, end in self._left.get("ends", ())}
        self.lent = {token for token, facts in self._left.get("tokens", ()) if facts["lent"]}  # to tests, which may close them
        self.in_flight = {RolloutKey(*key): int(began) for key, began in self._left.get("in_flight", ())}

    @property
    def plan(self) -> list[RolloutKey] | None:
        """The rollouts that tests have still to ask for, once for each test; None before there is a plan."""
        keys = self._left.get("plan")
        return None if keys is None else [RolloutKey(*key) for key in keys]

    @property
    def round(self) -> list[Sequence[Any]]:
        """The round of trials that is under way, and which no test asks for; empty where there is none."""
        return [*self._left.get("round", ())]

    def hand_to(self, scheduler: Scheduler, addresses: Addresses) -> None:
        """What needs no tap."""
        scheduler.alone.update(RolloutKey(*key) for key in self._left.get("alone", ()))
        for key, attempts in self._left.get("attempts", ()):
            scheduler.earlier[RolloutKey(*key)] = tuple(codec.received(Attempt, attempt) for attempt, _ in attempts)
            scheduler.tries[RolloutKey(*key)] = sum(not interrupted for _, interrupted in attempts)
        addresses.before = RolloutTally(**self._left.get("tally", {}))

    async def settle(self, scheduler: Scheduler, addresses: Addresses) -> None:
        """Breaks off the calls that were under way, releases what was announced, and keeps what the tap saw of the attempts."""
        for token, facts in self._left.get("tokens", ()):
            if facts["label"]:
                addresses.adopt(token, facts["label"])
            if not facts["lent"]:
                with suppress(InfraError):  # the tap is gone as well: nobody knows these calls any more
                    self._calls[RolloutKey(*facts["key"])].add(codec.each_received(LLMCall, await addresses.close(token)))
        addresses.release(self._left.get("labels", {}))
        for key, began in self.in_flight.items():
            if key not in self.ends:
                self._note(scheduler, key, began)

    def _note(self, scheduler: Scheduler, key: RolloutKey, began: int) -> None:
        earlier, calls = scheduler.earlier.get(key, ()), self._calls[key]
        why = f"interrupted: {self._left['why']}"
        times = (self._session, began, time.monotonic_ns())
        attempt = Attempt(len(earlier) + 1, "infra_error", why, *times, tuple(calls.measured), tuple(calls.others))
        scheduler.earlier[key] = (*earlier, attempt)
        scheduler.reporter.failed(key, attempt, interrupted=True)

    def end_of(self, key: RolloutKey, suite: PoolSuite, scenarios: Mapping[tuple[str, str], Scenario]) -> Rollout | None:
        """How a rollout ends that is not run again; None for one that is to run."""
        if key not in self.ends:
            return None
        end, calls, now = self.ends[key], self._calls.get(key, AttemptCalls()), time.monotonic_ns()
        if "rollout" in end:
            return dataclasses.replace(codec.received(Rollout, end["rollout"]), other_calls=tuple(calls.others))
        return Rollout(
            *key,
            status=end["status"],
            reason=end["reason"],
            started_at=time.time(),
            started_ns=self.in_flight.get(key, now),
            ended_ns=now,
            calls=tuple(calls.measured),
            other_calls=tuple(calls.others),
            expected=scenarios[key.suite, key.scenario].expected,
            reference=scenarios[key.suite, key.scenario].reference,
            turns=sum(not call.role for call in calls.measured),
            settings=dict(suite.agent_of(key.variant)),
            log=end.get("log", ""),
        )
