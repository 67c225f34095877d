"""Opens the sandboxes of rollouts, limits how many of them run at the same time on a machine, and builds the images of tasks before."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, suppress
from typing import Protocol, TypeVar

from pytest_agentbench.errors import BackendError, InfraError
from pytest_agentbench.lib import file_system
from pytest_agentbench.lib.process import usable_cores
from pytest_agentbench.lib.threads import in_thread
from pytest_agentbench.records import RolloutKey
from pytest_agentbench.sandbox.bubblewrap import Bubblewrap
from pytest_agentbench.sandbox.containers import clean_up, client, end_run, image_of, infra, make_filter_image, make_image, unenforced
from pytest_agentbench.sandbox.docker_sandbox import DockerSandbox, needs_filter
from pytest_agentbench.sandbox.harbor_sandbox import open_harbor_sandbox
from pytest_agentbench.sandbox.sandbox import BUBBLEWRAP, CodePlace, CommandRunner, Sandbox
from pytest_agentbench.suites.suite import DOCKER, HARBOR, Task

MOST = 24  # highest default for the number of sandboxes
_POLL = 0.1  # seconds between two attempts to take a free slot
_NOTICE_AFTER = 5.0  # seconds of waiting after which the user is notified


def default_count() -> int:
    """Returns the default number of sandboxes on a machine: two for each core that this process may use, at most MOST."""
    return min(2 * usable_cores(), MOST)


class Slot:
    """The right to run one sandbox, until `release` or the end of this process."""

    def __init__(self, lock: file_system.Lock) -> None:
        self._lock: file_system.Lock | None = lock

    def release(self) -> None:
        """Releases the slot. A second call does nothing."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None


class Slots:
    """Limits how many sandboxes run on a machine: each needs a slot. All sessions on the machine share its slots.

    This session uses at most the first `count` slots.
    """

    def __init__(self, count: int, notify: Callable[[str], None]) -> None:
        """`notify` gets a sentence for the user, once, if a rollout waits for long."""
        self._count, self._notify_user = count, notify
        self._queue = asyncio.Lock()  # Only one rollout polls; the others wait for this lock.
        self._notified = False

    async def take(self) -> Slot:
        """Waits for a free slot and takes it. Raises InfraError if locks cannot be used."""
        async with self._queue:
            began = time.monotonic()
            while (slot := self._free()) is None:
                if time.monotonic() - began > _NOTICE_AFTER and not self._notified:
                    self._notified = True
                    self._notify_user(
                        f"a rollout waits, because at most {self._count} sandbox{'es run' if self._count > 1 else ' runs'} at once on this "
                        "machine; --agentbench-sandboxes=N changes this"
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
    """Opens sandboxes for rollouts. `seconds` is the time limit of the agent (None: no limit). Methods raise InfraError."""

    async def task(self, key: RolloutKey, task: Task, seconds: float | None) -> Sandbox:
        """Opens a sandbox in which a task is carried out."""

    async def code(self, key: RolloutKey, place: CodePlace, seconds: float | None) -> CommandRunner:
        """Opens a sandbox for programs that a model writes, for scenarios without a sandbox (no terminal tasks)."""


Opened = TypeVar("Opened", bound=CommandRunner)

A_DAY = 86400.0
LEEWAY = 600.0  # seconds that a sandbox lives longer than the time limits of agent and verifier


async def open_sandbox(
    key: RolloutKey, task: Task, seconds: float | None, run: str = "", on_end: Callable[[], None] = lambda: None
) -> Sandbox:
    """Opens a sandbox of the kind that the task names. A Docker container ends by itself ten minutes after all time limits (LEEWAY)."""
    if task.sandbox.startswith(HARBOR):
        return await open_harbor_sandbox(key, task, on_end)
    life = (A_DAY if seconds is None else seconds) + task.verifier_timeout_s + LEEWAY
    sandbox = DockerSandbox(run, key, task, life, on_end)
    await sandbox.start()
    return sandbox


async def open_code(
    key: RolloutKey, place: CodePlace, seconds: float | None, run: str = "", on_end: Callable[[], None] = lambda: None
) -> CommandRunner:
    """Opens a sandbox of the kind in `place` for programs that the model writes."""
    if place.kind != BUBBLEWRAP:
        return await open_sandbox(key, place.container, seconds, run, on_end)
    commands = Bubblewrap(f"the sandbox of {key}", place, on_end)
    await commands.start()
    return commands


class UnlimitedSandboxes:
    """Opens any number of sandboxes."""

    async def task(self, key: RolloutKey, task: Task, seconds: float | None) -> Sandbox:
        return await open_sandbox(key, task, seconds)

    async def code(self, key: RolloutKey, place: CodePlace, seconds: float | None) -> CommandRunner:
        return await open_code(key, place, seconds)


@asynccontextmanager
async def sandbox_for(key: RolloutKey, task: Task | None, seconds: float | None, opening: SandboxFactory) -> AsyncIterator[Sandbox | None]:
    """Opens the sandbox of a task until the block ends. Yields None without a task. Raises InfraError if the task is broken."""
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
    """Opens the sandbox for an agent's programs until the block ends. Yields None if the agent runs no programs."""
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
        with suppress(InfraError):  # The sandbox ends by itself later, and the result of the rollout is valid.
            await opened.end()


class Sandboxes:
    """Opens the sandboxes of one session. Limits their number on the machine, and refuses images that could not be built."""

    def __init__(self, run: str, count: int, notify: Callable[[str], None]) -> None:
        """`run` is the label of the containers. `notify` gets sentences for the user."""
        self._run, self._notify_user = run, notify
        self._slots = Slots(count, notify)
        self._cleanup: asyncio.Task[None] | None = None
        self.unbuilt: Mapping[str, str] = {}  # image -> why it could not be built

    async def task(self, key: RolloutKey, task: Task, seconds: float | None) -> Sandbox:
        """Waits for a slot, then opens a sandbox, which has the slot until it ends. Raises InfraError."""
        if why := self.unbuilt.get(image_of(task)):
            raise InfraError(why)
        await self._clean_up_once()
        return await self._with_slot(lambda release: open_sandbox(key, task, seconds, self._run, release))

    async def code(self, key: RolloutKey, place: CodePlace, seconds: float | None) -> CommandRunner:
        """Waits for a slot, then opens a sandbox for programs that a model writes in a scenario that is not a task. Raises InfraError."""
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
        """Removes the leftovers of killed sessions, and of killed pools (processes that ran rollouts) of this session."""
        try:
            removed = await in_thread(clean_up)
        except InfraError as error:  # Leftovers do not prevent rollouts from opening sandboxes.
            self._notify_user(str(error))
            return
        if removed:
            self._notify_user(f"removed what a killed session had left: {'; '.join(removed)}")


PARALLEL_BUILDS = 2  # images built at the same time


class ImageBuilder:
    """Builds images of tasks. `make` blocks until they are built; other threads may read the attributes meanwhile."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """`say` shows a sentence to the user."""
        self._say = say
        self.unbuilt: dict[str, str] = {}  # image -> why it could not be built
        self.status = ""  # current build step; empty if nothing is being built

    def make(self, tasks: Sequence[Task]) -> None:
        """Builds the images of these tasks that are missing. Images that fail are in `unbuilt`, with the reason."""
        began = time.monotonic()
        with ThreadPoolExecutor(PARALLEL_BUILDS, "agentbench-image") as threads:
            made = sum(threads.map(self._make, tasks))
        self.status = ""
        if made:
            self._say(f"made the image{'s' * (made > 1)} of {made} task{'s' * (made > 1)} in {time.monotonic() - began:.0f} s")
        built = [task for task in tasks if image_of(task) not in self.unbuilt]
        if any(needs_filter(task) for task in built):
            self._make_filter()
        self._warn(built)

    def _make_filter(self) -> None:
        try:
            make_filter_image(self._show)
        except InfraError as error:
            self._say(str(error))  # Each sandbox that needs it fails with the same reason.
        self.status = ""

    def _warn(self, tasks: Sequence[Task]) -> None:
        """Warns about limits that the container engine does not enforce, before any task runs."""
        if not tasks:
            return
        with suppress(InfraError), closing(client()) as engine, infra():  # If the engine fails, the sandboxes say so.
            for sentence in unenforced(engine, engine.images.get(image_of(tasks[0])), tasks[0]):
                self._say(sentence)

    def _make(self, task: Task) -> bool:
        """Builds the image of a task if it is missing. Returns whether it was built."""
        try:
            return make_image(task, self._show)
        except InfraError as error:
            self.unbuilt[image_of(task)] = str(error)
            return False

    def _show(self, line: str) -> None:
        self.status = line


class TaskImages(ImageBuilder):
    """The container images that the planned tasks of a session need. Also removes sandboxes that are left at the session's end."""

    def __init__(self, tasks: Mapping[tuple[str, str], Task], run: str, say: Callable[[str], None]) -> None:
        """`tasks`: (suite, scenario id) -> task. `run` is the name that labels the run's containers. `say` shows a sentence to the user."""
        super().__init__(say)
        self.tasks, self._run = tasks, run
        self.planned: Sequence[RolloutKey] = ()

    @property
    def needed(self) -> tuple[Task, ...]:
        """One task for each image that the planned tasks with a Docker sandbox need."""
        tasks = [self.tasks[place] for key in self.planned if (place := (key.suite, key.scenario)) in self.tasks]
        images = {image_of(task): task for task in tasks if task.sandbox == DOCKER and not (task.unsupported or task.broken)}
        return (*images.values(),)

    def end(self) -> None:
        """Removes sandboxes that the pool and node workers of this machine left because they were killed or stopped waiting."""
        if self.tasks:
            with suppress(InfraError):  # Sandboxes end by themselves, and the next session names those that are left.
                end_run(self._run)
