"""Runs single attempts of rollouts: prepares the suite's code and its template processes, opens sandbox and address at the tap, runs agent
and scorers.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

from pytest_agentbench.errors import ConfigError, InfraError
from pytest_agentbench.lib.foreign import Sizes
from pytest_agentbench.llm.access import Tap
from pytest_agentbench.records import Endpoint, Json, Rollout, RolloutKey, split_calls
from pytest_agentbench.rollouts.isolation.outside import ForkedProcess, Template, TemplateDied, isolated, wants_isolation
from pytest_agentbench.rollouts.isolation.protocol import Job
from pytest_agentbench.rollouts.pool.controller_link import Link
from pytest_agentbench.rollouts.pool.failed_attempts import Outages
from pytest_agentbench.rollouts.pool.model_addresses import Addresses
from pytest_agentbench.rollouts.protocol import PoolSettings, ShowUser, TemplateLost, TemplateServes
from pytest_agentbench.rollouts.rollout import RolloutSetup, prepare, run_rollout
from pytest_agentbench.runs.attempts import AttemptBegun, AttemptState
from pytest_agentbench.sandbox.factory import Sandboxes
from pytest_agentbench.suites.suite import PoolSuite, Scenario


class RunnerHost(Protocol):
    """The methods of the pool that TemplateKeeper calls when a template process dies."""

    def hold(self, part: str, group: str) -> None:
        """Prevents new attempts until the controller reports that `part` serves again. Only rollouts of `group` use that part."""

    def give_up(self, group: str, reason: str) -> None:
        """Starts no more rollouts of a group (suite and variant)."""


class Setups:
    """Prepares the setup (agent, tools, scorers) of each suite and variant when its first rollout runs, and keeps it.

    The code of a suite with `isolation: process` runs in a template process, which this class keeps running until `close`.
    """

    def __init__(self, link: Link, host: RunnerHost, sizes: Sizes) -> None:
        self._link, self._host, self._sizes = link, host, sizes
        self._prepared: dict[tuple[str, str], asyncio.Task[RolloutSetup]] = {}
        self._keepers: list[TemplateKeeper] = []

    async def of(self, suite: PoolSuite, variant: str) -> RolloutSetup:
        """Returns the setup of a suite and variant. Raises InfraError if the suite's own code cannot be loaded. Loading is tried once."""
        at = suite.name, variant
        if at not in self._prepared:  # Its own context keeps the output of the task out of the rollout's log.
            self._prepared[at] = asyncio.create_task(self._prepare(suite, variant), context=contextvars.Context())
        try:
            return await asyncio.shield(self._prepared[at])
        except ConfigError as error:
            raise InfraError(str(error)) from error

    async def _prepare(self, suite: PoolSuite, variant: str) -> RolloutSetup:
        if not wants_isolation(suite, variant):
            return prepare(suite, variant, self._sizes)
        keeper = TemplateKeeper(suite, variant, self._link, self._host, self._sizes)
        self._keepers.append(keeper)
        await keeper.start()
        return isolated(suite, variant, keeper, self._sizes)

    async def close(self) -> None:
        """Ends all template processes."""
        await asyncio.gather(*(keeper.close() for keeper in self._keepers))


class TemplateKeeper:
    """Keeps the template process of one suite and variant running.

    If the process dies, no attempt begins until another one has imported the suite's code. The controller counts the deaths, like those
    of other parts of the session, and decides whether the process is started again. If it is not, the rollouts of this suite and variant
    are given up. Other suites continue.
    """

    def __init__(self, suite: PoolSuite, variant: str, link: Link, host: RunnerHost, sizes: Sizes) -> None:
        self._suite, self._variant, self._link, self._host, self._sizes = suite, variant, link, host, sizes
        self._group = suite.name if variant == "default" else f"{suite.name}-{variant}"
        self._name = f"template of {self._group}"
        self.judging: tuple[str, ...] = ()  # scorers that call a model
        self.settings: Json = {}  # settings of the agent, including defaults
        self._template: Template | None = None  # None while no process serves
        self._serves = asyncio.Event()  # set if a process serves, or if none ever will
        self._given_up = ""  # why no process is started any more; empty while one may be
        self._restart: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Starts the first process. Raises ConfigError if the suite's code cannot be loaded."""
        try:
            await self._start()
        except TemplateDied as death:
            self._lose(_as_awaitable(str(death)))
            await self._serves.wait()
            if self._given_up:
                raise ConfigError(self._given_up) from death

    @asynccontextmanager
    async def process(self, job: Job) -> AsyncIterator[ForkedProcess]:
        """Yields a process that runs a job, and kills that process at the end. Raises InfraError if the template has been given up."""
        await self._serves.wait()
        if self._template is None:
            raise InfraError(self._given_up)
        async with self._template.process(job) as process:
            yield process

    async def close(self) -> None:
        """Ends the template process and all processes that it forked."""
        template, self._template = self._template, None  # Otherwise its end would count as a death.
        if self._restart is not None:
            self._restart.cancel()
            await asyncio.wait([self._restart])
        if template is not None:
            await template.close()

    async def _start(self) -> None:
        self._template = template = await Template.start(self._suite, self._variant, self._died, self._sizes)
        self.judging, self.settings = template.judging, template.settings
        self._serves.set()

    def _died(self, template: Template) -> None:
        if template is self._template:
            self._template = None
            self._lose(template.end())

    def _lose(self, end: Awaitable[str]) -> None:
        """Begins to replace a template process that has died. `end` returns how the process died.

        Prevents new attempts of its suite and variant at once, so that attempts that fail because of this death count as interrupted.
        """
        self._serves.clear()
        self._host.hold(self._name, self._group)
        self._restart = asyncio.create_task(self._start_again(end), context=contextvars.Context())

    async def _start_again(self, end: Awaitable[str]) -> None:
        how = await end
        try:
            while not self._given_up and self._template is None:
                verdict, _ = await self._link.ask(TemplateLost(self._name, self._group))
                if verdict.again:
                    how = await self._again() or how
                else:
                    self._give_up(f"{how} repeatedly, with no rollout finished in between")
        except (ConfigError, InfraError, OSError) as error:
            self._give_up(f"{how}, and could not be started again: {error}")
        self._link.tell(TemplateServes(self._name))

    async def _again(self) -> str:
        """Starts another process. Returns an empty string if it serves, or how it died before that."""
        try:
            await self._start()
        except TemplateDied as death:
            return str(death)
        return ""

    def _give_up(self, why: str) -> None:
        self._given_up = why
        self._serves.set()
        self._host.give_up(self._group, why)


async def _as_awaitable(how: str) -> str:
    return how


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
