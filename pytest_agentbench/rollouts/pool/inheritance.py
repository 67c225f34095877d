"""What a pool that died leaves to the next one: rollouts that were in flight, addresses that are still open, and what it knew."""

from __future__ import annotations

import dataclasses
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from pytest_agentbench.errors import InfraError
from pytest_agentbench.records import Attempt, LLMCall, Rollout, RolloutKey
from pytest_agentbench.rollouts.inherited import Inherited, RolloutEnd
from pytest_agentbench.rollouts.pool.addresses import Addresses
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

    def __init__(self, left: Inherited | None, session: int) -> None:
        """`session` is the number of the session within its run."""
        self._left, self._session = left, session
        self._calls: defaultdict[RolloutKey, AttemptCalls] = defaultdict(AttemptCalls)
        #: Rollouts that are not run again, because of what they do to the session -> how they end.
        self.ends: dict[RolloutKey, RolloutEnd | Rollout] = {}
        if left is not None:
            self.ends = {each.key: each for each in left.ends} | {each.key: each for each in left.unscored}
        self.lent = {each.token for each in left.tokens if each.lent} if left else set()  # to tests, which may close them
        self.in_flight = {each.key: each.began_ns for each in left.in_flight} if left else {}

    @property
    def plan(self) -> tuple[RolloutKey, ...] | None:
        """The rollouts that tests have still to ask for, once for each test; None before there is a plan."""
        return self._left.plan if self._left else None

    @property
    def round(self) -> tuple[RolloutKey, ...]:
        """The round of trials that is under way, and which no test asks for; empty where there is none."""
        return self._left.round if self._left else ()

    def hand_to(self, scheduler: Scheduler, addresses: Addresses) -> None:
        """What needs no tap."""
        if self._left is None:
            return
        scheduler.alone.update(self._left.alone)
        for each in self._left.attempts:
            scheduler.earlier[each.key] = (*scheduler.earlier.get(each.key, ()), each.attempt)
            scheduler.tries[each.key] += not each.interrupted
        addresses.before = self._left.tally

    async def settle(self, scheduler: Scheduler, addresses: Addresses) -> None:
        """Breaks off the calls that were under way, releases what was announced, and keeps what the tap saw of the attempts."""
        if self._left is None:
            return
        for each in self._left.tokens:
            if each.label:
                addresses.adopt(each.token, each.label)
            if not each.lent:
                with suppress(InfraError):  # the tap is gone as well: nobody knows these calls any more
                    self._calls[each.key].add(await addresses.close(each.token))
        addresses.release(self._left.labels)
        for key, began in self.in_flight.items():
            if key not in self.ends:
                self._note(scheduler, key, began, f"interrupted: {self._left.why}")

    def _note(self, scheduler: Scheduler, key: RolloutKey, began: int, why: str) -> None:
        earlier, calls = scheduler.earlier.get(key, ()), self._calls[key]
        times = (self._session, began, time.monotonic_ns())
        attempt = Attempt(len(earlier) + 1, "infra_error", why, *times, tuple(calls.measured), tuple(calls.others))
        scheduler.earlier[key] = (*earlier, attempt)
        scheduler.reporter.failed(key, attempt, interrupted=True)

    def end_of(self, key: RolloutKey, suite: PoolSuite, scenarios: Mapping[tuple[str, str], Scenario]) -> Rollout | None:
        """How a rollout ends that is not run again; None for one that is to run."""
        if key not in self.ends:
            return None
        end, calls, now = self.ends[key], self._calls.get(key, AttemptCalls()), time.monotonic_ns()
        if isinstance(end, Rollout):
            return dataclasses.replace(end, other_calls=tuple(calls.others))
        return Rollout(
            *key,
            status=end.status,
            reason=end.reason,
            started_at=time.time(),
            started_ns=self.in_flight.get(key, now),
            ended_ns=now,
            calls=tuple(calls.measured),
            other_calls=tuple(calls.others),
            expected=scenarios[key.suite, key.scenario].expected,
            reference=scenarios[key.suite, key.scenario].reference,
            turns=sum(not call.role for call in calls.measured),
            settings=dict(suite.agent_of(key.variant)),
            log=end.log,
        )
