"""How a rollout comes by its sandbox, and how many sandboxes run at once on a host."""

from __future__ import annotations

import asyncio
import contextvars
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Protocol, TypeVar

from pytest_agentbench.errors import BackendError, InfraError
from pytest_agentbench.lib import file_system
from pytest_agentbench.lib.threads import in_thread
from pytest_agentbench.records import RolloutKey
from pytest_agentbench.sandbox.bubblewrap import Bubblewrap
from pytest_agentbench.sandbox.containers import clean_up, image_of
from pytest_agentbench.sandbox.docker_sandbox import DockerSandbox
from pytest_agentbench.sandbox.harbor_factory import open_harbor_sandbox
from pytest_agentbench.sandbox.sandbox import BUBBLEWRAP, CodePlace, CommandRunner, Sandbox
from pytest_agentbench.suites.suite import HARBOR, Task

MOST = 24  # unless it is said otherwise
_POLL = 0.1  # seconds between two looks for a free one
_NOTICE_AFTER = 5.0  # seconds after which the user is told what is waited for


def default_count() -> int:
    """Sandboxes that a host carries: two for each core that this process may use, 24 at most."""
    return min(2 * len(os.sched_getaffinity(0)), MOST)


class Slot:
    """One that is held, until `release` or the end of this process."""

    def __init__(self, lock: file_system.Lock) -> None:
        self._lock: file_system.Lock | None = lock

    def release(self) -> None:
        """A second call does nothing."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None


class Slots:
    """The slots of a host, `count` of them as far as this session is concerned."""

    def __init__(self, count: int, notify: Callable[[str], None]) -> None:
        """`tell` is given a sentence, once, where somebody waits for long."""
        self._count, self._notify_user = count, notify
        self._queue = asyncio.Lock()  # one looks, the others wait behind him
        self._notified = False

    async def take(self) -> Slot:
        """Waits until one is free; raises InfraError where locks cannot be used."""
        async with self._queue:
            began = time.monotonic()
            while (slot := self._free()) is None:
                if time.monotonic() - began > _NOTICE_AFTER and not self._notified:
                    self._notified = True
                    self._notify_user(
                        f"{self._count} sandbox{'es run' if self._count > 1 else ' runs'} on this machine at once, and others wait; "
                        "--agentbench-sandboxes=N allows N"
                    )
                await asyncio.sleep(_POLL)
            return slot

    def _free(self) -> Slot | None:
        try:
            locks = (file_system.take(f"sandbox-{number}", "a sandbox") for number in range(self._count))
            lock = next((each for each in locks if not isinstance(each, str)), None)
        except BackendError as error:
            raise InfraError(str(error)) from error
        return Slot(lock) if lock is not None else None


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
    async with _until_exit(await opening.task(key, task, seconds)) as sandbox:
        yield sandbox


@asynccontextmanager
async def code_place_for(
    key: RolloutKey, place: CodePlace | None, seconds: float | None, opening: SandboxFactory
) -> AsyncIterator[CommandRunner | None]:
    """Where the programs of a scenario run that is no task, until the block ends; None where its agent runs none."""
    if place is None:
        yield None
        return
    async with _until_exit(await opening.code(key, place, seconds)) as commands:
        yield commands


@asynccontextmanager
async def _until_exit(opened: Opened) -> AsyncIterator[Opened]:
    try:
        yield opened
    finally:
        with suppress(InfraError):  # it ends by itself, and what was measured stands
            await opened.end()


class Sandboxes:
    """Those of one session: so many at once on the whole host, and of images that could be made."""

    def __init__(self, run: str, count: int, notify: Callable[[str], None]) -> None:
        """`run` is what they are labelled with; `say` is given sentences for the user."""
        self._run, self._notify_user = run, notify
        self._slots = Slots(count, notify)
        self._cleanup: asyncio.Task[None] | None = None
        self.unbuilt: Mapping[str, str] = {}  # image -> why there is none

    async def task(self, key: RolloutKey, task: Task, seconds: float | None) -> Sandbox:
        """Waits for a slot, which the sandbox has until it ends; raises InfraError."""
        if why := self.unbuilt.get(image_of(task)):
            raise InfraError(why)
        await self._clean_up_once()
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

    async def _clean_up_once(self) -> None:
        self._cleanup = self._cleanup or asyncio.create_task(self._clean_up(), context=contextvars.Context())
        await asyncio.shield(self._cleanup)

    async def _clean_up(self) -> None:
        """Removes what sessions, and pools of this one, have left that were killed."""
        try:
            removed = await in_thread(clean_up)
        except InfraError as error:  # it is in nobody's way: a rollout gets a sandbox, or says itself why not
            self._notify_user(str(error))
            return
        if removed:
            self._notify_user(f"removed what was left of a session that was killed: {'; '.join(removed)}")
