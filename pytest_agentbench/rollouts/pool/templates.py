"""Prepares what rollouts of a suite share: agent, tools and scorers. Keeps template processes running for `isolation: process`."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Protocol

from pytest_agentbench.errors import ConfigError, InfraError
from pytest_agentbench.lib.foreign import Sizes
from pytest_agentbench.records import Json
from pytest_agentbench.rollouts.isolation.outside import ForkedProcess, Template, TemplateDied, isolated, wants_isolation
from pytest_agentbench.rollouts.isolation.protocol import Job
from pytest_agentbench.rollouts.pool.controller_link import Link
from pytest_agentbench.rollouts.protocol import TemplateLost, TemplateServes
from pytest_agentbench.rollouts.rollout import RolloutSetup, prepare
from pytest_agentbench.suites.suite import PoolSuite


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
