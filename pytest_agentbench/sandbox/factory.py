"""How a rollout comes by its sandbox."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Protocol, TypeVar

from pytest_agentbench.errors import InfraError
from pytest_agentbench.lib.threads import in_thread
from pytest_agentbench.records import RolloutKey
from pytest_agentbench.sandbox.bubblewrap import Bubblewrap
from pytest_agentbench.sandbox.code_place import BUBBLEWRAP, CodePlace
from pytest_agentbench.sandbox.docker_sandbox import DockerSandbox
from pytest_agentbench.sandbox.harbor_factory import open_harbor_sandbox
from pytest_agentbench.sandbox.images import image_of
from pytest_agentbench.sandbox.leftovers import reap
from pytest_agentbench.sandbox.sandbox import CommandRunner, Sandbox
from pytest_agentbench.sandbox.slots import Slots
from pytest_agentbench.suites.task import HARBOR, Task


class SandboxFactory(Protocol):
    """Opens a sandbox for a rollout whose agent has so many seconds (None: no limit); raises InfraError."""

    async def task(self, key: RolloutKey, task: Task, seconds: float | None) -> Sandbox:
        """One in which a task is carried out."""

    async def code(self, key: RolloutKey, place: CodePlace, seconds: float | None) -> CommandRunner:
        """One for the programs of a scenario that is no task."""


Opened = TypeVar("Opened", bound=CommandRunner)

A_DAY = 86400.0
LEEWAY = 600.0  # seconds between the end of agent and verifier and the sandbox's own


async def open_sandbox(
    key: RolloutKey, task: Task, seconds: float | None, run: str = "", on_end: Callable[[], None] = lambda: None
) -> Sandbox:
    """What its suite asks for. A container of ours ends by itself when agent and verifier have had their time and somewhat more."""
    if task.sandbox.startswith(HARBOR):
        return await open_harbor_sandbox(key, task, on_end)
    life = (A_DAY if seconds is None else seconds) + task.verifier_timeout_s + LEEWAY
    sandbox = DockerSandbox(run, key, task, life, on_end)
    await sandbox.start()
    return sandbox


async def open_code(
    key: RolloutKey, place: CodePlace, seconds: float | None, run: str = "", on_end: Callable[[], None] = lambda: None
) -> CommandRunner:
    """Of the kind that is asked for and of no other."""
    if place.kind != BUBBLEWRAP:
        return await open_sandbox(key, place.container, seconds, run, on_end)
    commands = Bubblewrap(f"the sandbox of {key}", place, on_end)
    await commands.start()
    return commands


class UnlimitedSandboxes:
    """Opens as many sandboxes as are asked for."""

    async def task(self, key: RolloutKey, task: Task, seconds: float | None) -> Sandbox:
        return await open_sandbox(key, task, seconds)

    async def code(self, key: RolloutKey, place: CodePlace, seconds: float | None) -> CommandRunner:
        return await open_code(key, place, seconds)


@asynccontextmanager
async def sandbox_for(key: RolloutKey, task: Task | None, seconds: float | None, opening: SandboxFactory) -> AsyncIterator[Sandbox | None]:
    """Opens the sandbox of a task, which ends with the block; None for a scenario that is not a task. A broken task is an InfraError."""
    if task is None:
        yield None
        return
    if task.broken:
        raise InfraError(task.broken)
    async with _ended(await opening.task(key, task, seconds)) as sandbox:
        yield sandbox


@asynccontextmanager
async def code_place_for(
    key: RolloutKey, place: CodePlace | None, seconds: float | None, opening: SandboxFactory
) -> AsyncIterator[CommandRunner | None]:
    """Where the programs of a scenario run that is no task, until the block ends; None where its agent runs none."""
    if place is None:
        yield None
        return
    async with _ended(await opening.code(key, place, seconds)) as commands:
        yield commands


@asynccontextmanager
async def _ended(opened: Opened) -> AsyncIterator[Opened]:
    try:
        yield opened
    finally:
        with suppress(InfraError):  # it ends by itself, and what was measured stands
            await opened.end()


class Sandboxes:
    """Those of one session: so many at once on the whole host, and of images that could be made."""

    def __init__(self, run: str, count: int, say: Callable[[str], None]) -> None:
        """`run` is what they are labelled with; `say` is given sentences for the user."""
        self._run, self._say = run, say
        self._slots = Slots(count, say)
        self._clearing: asyncio.Task[None] | None = None
        self.unbuilt: Mapping[str, str] = {}  # image -> why there is none

    async def task(self, key: RolloutKey, task: Task, seconds: float | None) -> Sandbox:
        """Waits for a slot, which the sandbox has until it ends; raises InfraError."""
        if why := self.unbuilt.get(image_of(task)):
            raise InfraError(why)
        await self._cleared()
        return await self._with_slot(lambda release: open_sandbox(key, task, seconds, self._run, release))

    async def code(self, key: RolloutKey, place: CodePlace, seconds: float | None) -> CommandRunner:
        """The same for programs of a scenario that is no task."""
        if place.kind != BUBBLEWRAP:
            return await self.task(key, place.container, seconds)
        return await self._with_slot(lambda release: open_code(key, place, seconds, self._run, release))

    async def _with_slot(self, start: Callable[[Callable[[], None]], Awaitable[Opened]]) -> Opened:
        slot = await self._slots.take()
        try:
            return await start(slot.release)
        except BaseException:
            slot.release()
            raise

    async def _cleared(self) -> None:
        self._clearing = self._clearing or asyncio.create_task(self._clear(), context=contextvars.Context())
        await asyncio.shield(self._clearing)

    async def _clear(self) -> None:
        """Removes what sessions, and pools of this one, have left that were killed."""
        try:
            removed = await in_thread(reap)
        except InfraError as error:  # it is in nobody's way: a rollout gets a sandbox, or says itself why not
            self._say(str(error))
            return
        if removed:
            self._say(f"removed what was left of a session that was killed: {'; '.join(removed)}")
