"""A sandbox that is a container of a Docker Engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pytest_agentbench.errors import InfraError
from pytest_agentbench.lib.abandoned import refuse_abandoned
from pytest_agentbench.records import RolloutKey
from pytest_agentbench.sandbox.archive import first_file, packed
from pytest_agentbench.sandbox.command import KILL, KILL_ALL, Execution
from pytest_agentbench.sandbox.engine import beside, client, remove
from pytest_agentbench.sandbox.images import image_of, make_image
from pytest_agentbench.sandbox.limits import KIND, create
from pytest_agentbench.sandbox.ownership import labels
from pytest_agentbench.sandbox.sandbox import LARGEST_FILE, CommandResult, File
from pytest_agentbench.suites.task import Task


def _nothing() -> None:
    """For those who do not wait for its end."""


class DockerSandbox:
    """One container, from `start` to `end`."""

    def __init__(self, run: str, key: RolloutKey, task: Task, seconds: float, on_end: Callable[[], None] = _nothing) -> None:
        """`seconds` after its start it ends by itself; `on_end` is called when it has ended."""
        self._run, self._key, self._task, self._seconds, self._on_end = run, key, task, seconds, on_end
        self._what = f"the sandbox of {key}"
        self.kind = KIND
        self._engine: Any = None
        self._container: Any = None
        self._user = "root"  # the image's own

    async def start(self) -> None:
        """Returns when it takes commands; raises InfraError."""
        starting = asyncio.ensure_future(beside(self._what, self._start))
        try:
            await asyncio.shield(starting)
        except BaseException:
            with suppress(InfraError):
                await starting  # whose thread goes on when it is cancelled
            await self.end()
            raise

    def _start(self) -> None:
        self._engine = client()
        make_image(self._task, lambda _line: None)
        image = self._engine.images.get(image_of(self._task))
        self._user = image.attrs["Config"].get("User") or "root"
        marks = labels(self._run, self._key, time.time() + self._seconds)
        self._container, self.kind = create(self._engine, image, self._task, marks, self._seconds)
        self._container.start()

    async def exec(
        self,
        command: str,
        *,
        seconds: float,
        user: str | None = None,
        workdir: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        await refuse_abandoned()
        container, workdir = self._there(), workdir or self._task.workdir
        execution = Execution(self._engine.api, container.id, user=user or self._user, workdir=workdir, env=env or {})
        try:
            done: CommandResult = await beside(self._what, execution.run, command, seconds)
            return done
        except asyncio.CancelledError:
            execution.abandon()
            raise

    async def put(self, source: Path, target: str) -> None:
        with packed(source, target) as tar:
            await beside(f"{self._what}: {target}", self._there().put_archive, "/", tar)

    async def get(self, source: str, *, most: int = LARGEST_FILE) -> File:
        file: File | str | None = await beside(self._what, self._get, source, most)
        if file is None:
            raise FileNotFoundError(f"there is no {source} in the sandbox")
        if isinstance(file, str):
            raise OSError(f"{source} in the sandbox: {file}")
        return file

    def _get(self, source: str, most: int) -> File | str | None:
        from docker.errors import NotFound

        try:
            pieces, _ = self._there().get_archive(source)
        except NotFound as error:
            if "No such container" in str(error):
                raise
            return None
        return first_file(pieces, most)

    async def end_processes(self) -> None:
        try:
            if (await self.exec(KILL_ALL, seconds=KILL, user="root", workdir="/")).exit_code == 0:
                return
        except InfraError:  # nothing can be started in there, for too much runs or too little is left
            pass
        # So long the engine waits for the death of all that runs in there. When it sees it later, it removes the container.
        await beside(f"{self._what} cannot be started again", self._there().restart, timeout=60)

    async def fresh(self) -> DockerSandbox:
        other = DockerSandbox(self._run, self._key, self._task, self._seconds)
        await other.start()
        return other

    def _there(self) -> Any:
        if self._container is None:
            raise InfraError(f"{self._what} has ended")
        return self._container

    async def end(self) -> None:
        container, engine = self._container, self._engine
        self._container = self._engine = None
        try:
            if container is not None:
                await asyncio.shield(beside(f"{self._what} cannot be removed", remove, container))
        finally:
            if engine is not None:
                engine.close()
            self._on_end()
