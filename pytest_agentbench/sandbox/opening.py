"""How a rollout comes by its sandbox."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress

from pytest_agentbench.errors import InfraError
from pytest_agentbench.lib.threads import in_thread
from pytest_agentbench.records import Json, RolloutKey
from pytest_agentbench.sandbox.docker_sandbox import DockerSandbox
from pytest_agentbench.sandbox.harbor_opening import open_harbor_sandbox
from pytest_agentbench.sandbox.images import image_of
from pytest_agentbench.sandbox.leftovers import reap
from pytest_agentbench.sandbox.sandbox import Sandbox
from pytest_agentbench.sandbox.slots import Slots
from pytest_agentbench.suites.task import HARBOR, Task

#: Opens a sandbox for a rollout whose agent has so many seconds (None: no limit); raises InfraError.
OpenSandbox = Callable[[RolloutKey, Task, float | None], Awaitable[Sandbox]]

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


@asynccontextmanager
async def sandbox_for(key: RolloutKey, task: Task | None, seconds: float | None, opening: OpenSandbox) -> AsyncIterator[Sandbox | None]:
    """The sandbox of a task, which ends with the block; None where a scenario is none."""
    if task is None:
        yield None
        return
    sandbox = await opening(key, task, seconds)
    try:
        yield sandbox
    finally:
        with suppress(InfraError):  # it ends by itself, and what was measured stands
            await sandbox.end()


class Sandboxes:
    """Those of one session: so many at once on the whole host, and of images that could be made."""

    def __init__(self, run: str, count: int, tell: Callable[[Json], None]) -> None:
        """`run` is what they are labelled with; `tell` is given what the controller is to say to the user."""
        self._run, self._tell = run, tell
        self._slots = Slots(count, self._say)
        self._clearing: asyncio.Task[None] | None = None
        self.unbuilt: Mapping[str, str] = {}  # image -> why there is none

    async def open(self, key: RolloutKey, task: Task, seconds: float | None) -> Sandbox:
        """Waits for a slot, which the sandbox has until it ends; raises InfraError."""
        if why := self.unbuilt.get(image_of(task)):
            raise InfraError(why)
        self._clearing = self._clearing or asyncio.create_task(self._clear(), context=contextvars.Context())
        await asyncio.shield(self._clearing)
        slot = await self._slots.take()
        try:
            return await open_sandbox(key, task, seconds, self._run, slot.release)
        except BaseException:
            slot.release()
            raise

    async def _clear(self) -> None:
        """Removes what sessions, and pools of this one, have left that were killed."""
        with suppress(InfraError):  # no engine, no leftovers; who needs one will say so
            if removed := await in_thread(reap):
                self._say(f"removed what was left of a session that was killed: {'; '.join(removed)}")

    def _say(self, sentence: str) -> None:
        self._tell({"op": "say", "sentence": sentence})
