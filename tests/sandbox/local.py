"""A sandbox without isolation, for tests of code that uses one: bash in a folder of this machine."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from pytest_agentbench.sandbox.sandbox import LARGEST_FILE, CommandResult, File


class LocalSandbox:
    """A sandbox that runs commands in `folder`. Files are copied to and from places below it, with their absolute paths."""

    kind = "local"

    def __init__(self, folder: Path) -> None:
        self.folder, self.ended = folder, 0

    async def exec(
        self,
        command: str,
        *,
        seconds: float,
        user: str | None = None,  # noqa: ARG002 - it has one user
        workdir: str | None = None,  # noqa: ARG002 - and one folder
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        started = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", command.replace("/solution", f"{self.folder}/solution")),
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], **(env or {})},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(seconds):
                output, _ = await process.communicate()
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            if not isinstance(error, TimeoutError):
                raise
            return CommandResult(None, "", seconds=seconds)
        return CommandResult(process.returncode, output.decode(errors="replace"), seconds=time.monotonic() - started)

    async def put(self, source: Path, target: str) -> None:
        place = self._place(target)
        place.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():  # noqa: ASYNC240 - a small one
            shutil.copytree(source, place, dirs_exist_ok=True)
        else:
            shutil.copy(source, place)

    async def get(self, source: str, *, most: int = LARGEST_FILE) -> File:  # noqa: ARG002 - nothing here is large
        place = self._place(source)
        return File(place.read_bytes(), place.stat().st_uid)

    def _place(self, path: str) -> Path:
        return self.folder / path.lstrip("/")

    async def end_processes(self) -> None:
        pass

    async def halt(self) -> None:
        pass

    async def changed_files(self, tests: Path) -> tuple[str, ...]:  # noqa: ARG002 - it has no image
        return ()

    async def bring_tests(self, tests: Path, user: str | None) -> int:  # noqa: ARG002 - it has one user
        raise AssertionError("a verifier needs walls: its tests take a real engine (tests/sandbox/test_verifier.py)")

    def interpreter(self, name: str) -> str:
        return name

    async def fresh(self) -> LocalSandbox:
        raise AssertionError("a separate verifier needs walls: its tests take a real engine (tests/sandbox/test_verifier.py)")

    async def end(self) -> None:
        self.ended += 1
