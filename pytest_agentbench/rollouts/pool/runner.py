"""Runs single attempts of rollouts: prepares the suite's code, opens the sandbox and the address at the tap, runs agent and scorers."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from pytest_agentbench.errors import InfraError
from pytest_agentbench.llm.access import Tap
from pytest_agentbench.records import Endpoint, Rollout, RolloutKey, split_calls
from pytest_agentbench.rollouts.pool.addresses import Addresses
from pytest_agentbench.rollouts.pool.controller_link import Link
from pytest_agentbench.rollouts.pool.failed_attempts import Outages
from pytest_agentbench.rollouts.pool.templates import RunnerHost, Setups
from pytest_agentbench.rollouts.protocol import PoolSettings, ShowUser
from pytest_agentbench.rollouts.rollout import RolloutSetup, run_rollout
from pytest_agentbench.runs.attempts import AttemptBegun, AttemptState
from pytest_agentbench.sandbox.factory import Sandboxes
from pytest_agentbench.suites.suite import Scenario


class Nodes(Protocol):
    """The node workers of a session, which make attempts on other machines."""

    async def attempt(self, key: RolloutKey) -> Rollout:
        """Has a node worker make one attempt, and returns its record. Raises Interrupted if the node worker is lost."""

    async def point_at(self, endpoint: Endpoint, salt: str) -> None:
        """Has all node workers send later calls to this endpoint, with this text before the system prompts of agents."""


class Runner:
    """Runs attempts of rollouts, any number at the same time. Planning, order, retries and writing records are left to the scheduler.

    `run` makes one attempt and returns its record, with any status. It raises Interrupted if the attempt failed because a part of the
    session died. The controller gets `AttemptBegun` when the setup and the sandbox of the attempt are ready.

    `addresses.connect` and `addresses.point_at` must be called before the first attempt. `left` is the state that earlier pools left:
    `addresses.take_over` closes their addresses. `ends` has the final records of rollouts that do not run again. `run` completes
    and returns them. If `nodes` is set, node workers make the attempts.

    Not thread-safe: all methods run on the pool's event loop.
    """

    def __init__(
        self, settings: PoolSettings, addresses: Addresses, outages: Outages, link: Link, host: RunnerHost, left: AttemptState
    ) -> None:
        self.addresses, self.outages = addresses, outages
        self.nodes: Nodes | None = None
        self.ends = dict(left.ends)  # rollout that does not run again -> its record
        self._left = left
        self._session, self._budget = settings.session, settings.budget
        self._suites, self._link = settings.suites, link
        self._scenarios = {(suite.name, each.id): each for suite in self._suites.values() for each in suite.scenarios}
        self._setups = Setups(link, host, settings.sizes)
        self._sandboxes = Sandboxes(settings.run, settings.sandboxes, lambda sentence: link.tell(ShowUser(sentence)))

    def set_unbuilt(self, unbuilt: Mapping[str, str]) -> None:
        """Sets the images of tasks that could not be built: image -> reason. Rollouts of these tasks fail with the reason."""
        self._sandboxes.unbuilt = unbuilt

    async def point_at(self, endpoint: Endpoint, *, salt: str | None = None, anew: bool = False) -> None:
        """Has taps and node workers send later calls to this endpoint. `salt` replaces the text before the system prompts of agents.

        Raises ConfigError or InfraError as `Addresses.point_at` does.
        """
        await self.addresses.point_at(endpoint, anew=anew)
        self.addresses.salt = self.addresses.salt if salt is None else salt
        if self.nodes is not None:
            await self.nodes.point_at(endpoint, self.addresses.salt)

    def scenario(self, key: RolloutKey) -> Scenario:
        """Returns the scenario of a rollout."""
        return self._scenarios[key.suite, key.scenario]

    @property
    def longest_s(self) -> float:
        """The longest time limit of an attempt in this session, in seconds."""
        return max((self._budget or suite.timeout for suite in self._suites.values()), default=0.0)

    async def run(self, key: RolloutKey) -> Rollout:
        """Makes one attempt and returns its record. Raises Interrupted if it failed because a part of the session died."""
        if key in self.ends:
            return self._ended(key)
        before = self.outages.count(key)
        rollout = await (self._here(key) if self.nodes is None else self.nodes.attempt(key))
        return await self.outages.checked(dataclasses.replace(rollout, session=self._session), before)

    async def _here(self, key: RolloutKey) -> Rollout:
        """Makes one attempt on this machine."""
        started_at, started = time.time(), time.monotonic_ns()
        try:
            setup = await self._setup_of(key)
            return await self._with(setup, key, self.addresses, lambda: self._link.tell(AttemptBegun(key, time.monotonic_ns())))
        except InfraError as error:  # Setup, sandbox or address failed, so nothing was measured.
            times: dict[str, Any] = {"started_at": started_at, "started_ns": started, "ended_ns": time.monotonic_ns()}
            return Rollout(*key, status="infra_error", reason=str(error), **times)

    async def first_call(self, key: RolloutKey, tap: Tap) -> Rollout | None:
        """Runs a rollout without scorers, at addresses that `tap` opens for one call each. Returns its record.

        Returns None if the suite's code cannot be loaded.
        """
        try:
            setup = await self._setup_of(key)
        except InfraError:
            return None
        return await self._with(dataclasses.replace(setup, scorers={}), key, tap, lambda: None)

    async def close(self) -> None:
        """Ends all template processes, with the processes that they have forked."""
        await self._setups.close()

    async def _setup_of(self, key: RolloutKey) -> RolloutSetup:
        return await self._setups.of(self._suites[key.suite], key.variant)

    async def _with(self, setup: RolloutSetup, key: RolloutKey, tap: Tap, on_begin: Callable[[], None]) -> Rollout:
        budget = self._budget or self._suites[key.suite].timeout
        return await run_rollout(key, self.scenario(key), setup, tap, self.addresses.session, budget, self._sandboxes, on_begin)

    def _ended(self, key: RolloutKey) -> Rollout:
        """Returns the record of a rollout that does not run again, with the calls of the attempt that the death of a pool interrupted."""
        end, scenario, now = self.ends[key], self.scenario(key), time.monotonic_ns()
        measured, others = split_calls(self.addresses.left_calls.get(key, ()))
        if end.ended_ns:
            return dataclasses.replace(end, other_calls=(*end.other_calls, *others), session=self._session)
        return dataclasses.replace(
            end,
            session=self._session,
            started_at=time.time(),
            started_ns=self._left.interrupted[key].began_ns if key in self._left.interrupted else now,
            ended_ns=now,
            calls=measured,
            other_calls=others,
            expected=scenario.expected,
            reference=scenario.reference,
            turns=sum(not call.role for call in measured),
            settings=dict(self._suites[key.suite].agent_of(key.variant)),
        )
