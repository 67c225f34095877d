"""A sandbox without Docker: bubblewrap runs each command in its own namespaces, which end with the command."""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import signal
import time
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from pytest_agentbench.errors import InfraError
from pytest_agentbench.lib.abandoned import refuse_abandoned
from pytest_agentbench.sandbox.command import KILL, Clip, rejected_command
from pytest_agentbench.sandbox.sandbox import BUBBLEWRAP, CodePlace, CommandResult

PROCESSES = 128  # processes and threads at the same time
NOBODY = 65534  # user and group of sandboxes if this process is root, because the kernel does not limit the processes of root
SHARED_MEMORY = 64 << 20  # bytes of /dev/shm
PROBE = 20.0  # seconds for the first command, which only tests the sandbox

#: The kind, and the limit that is not enforced: without its own cgroup, memory is only limited for each process.
KIND = f"{BUBBLEWRAP}, memory limited for each process and not for all together"

#: Folders with programs and libraries, and files that they need to start. Nothing else of this machine is visible inside.
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives", "/etc/ld.so.cache")

HOME, SHARED = "/tmp", "/dev/shm"  # noqa: S108 - inside the sandbox, which has no other users

#: Sets the limits of the first process inside. All other processes inherit them, and none can raise them.
_LIMITED = 'echo 1000 > /proc/self/oom_score_adj; ulimit -c 0 -v {memory} -f {file} -t {cpu} -u {processes} || exit; exec bash -c "$1"'


class Bubblewrap:
    """A sandbox in which each command has its own, empty file system. When a command ends, its files and processes are removed."""

    kind = KIND

    def __init__(self, what: str, place: CodePlace, on_end: Callable[[], None] = lambda: None) -> None:
        """`what` is the name of the sandbox in errors. `on_end` is called when the sandbox has ended."""
        self._what, self._place, self._on_end = what, place, on_end
        self._running: set[Process] = set()

    async def start(self) -> None:
        """Checks that Python runs in the sandbox. Raises InfraError with the reason if not, for example if the kernel forbids it."""
        try:
            done = await self.exec("exec python3 -c pass", seconds=PROBE)
        except InfraError:
            self._on_end()
            raise
        if done.exit_code != 0:
            self._on_end()
            raise InfraError(
                f"{self._what} cannot run Python: {_last_line(done.output) or 'it took too long'}; "
                "install a python3 in /usr, which bubblewrap uses, or choose `code_sandbox: docker`"
            )

    async def exec(
        self,
        command: str,
        *,
        seconds: float,
        user: str | None = None,  # noqa: ARG002 - there is only one user
        workdir: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        await refuse_abandoned()
        if why := rejected_command(command):
            return why
        began, clip = time.monotonic(), Clip()
        report = BubblewrapReport()
        try:
            words = _command_line(self._place, report.writer, seconds, workdir or HOME, env or {})
            process = await self._start_process([*words, command], report.writer)
            report.close_writer()
            self._running.add(process)
            try:
                ended = await _read(process, clip, seconds)
            finally:
                await _kill(process, report, clip)
                self._running.discard(process)
            code = report.fact("exit-code") if ended else None
        finally:
            report.close()
        if ended and code is None:
            raise InfraError(f"{self._what} cannot be created: {_last_line(clip.text) or 'bubblewrap was killed'}; {_ADVICE}")
        return CommandResult(code, clip.text, clip.omitted, time.monotonic() - began)

    async def _start_process(self, words: list[str], report_fd: int) -> Process:
        identity: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        try:
            return await asyncio.create_subprocess_exec(
                *words, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, env={}, cwd="/", pass_fds=[report_fd], start_new_session=True, **identity
            )
        except OSError as error:
            raise InfraError(f"{self._what} cannot be created: {error}; {_ADVICE}") from error

    async def end(self) -> None:
        for process in self._running:
            with suppress(ProcessLookupError):
                process.kill()
        self._on_end()


_ADVICE = (
    "install bubblewrap 0.8 or later and let users create namespaces (sysctl kernel.unprivileged_userns_clone=1, "
    "or on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0), or choose `code_sandbox: docker`"
)


def _command_line(place: CodePlace, report_fd: int, seconds: float, workdir: str, env: Mapping[str, str]) -> list[str]:
    """Returns the bubblewrap command line, without the command to run inside. bubblewrap writes its report to `report_fd`."""
    program = shutil.which("bwrap")
    if program is None:
        raise InfraError("the program `bwrap` is not on the PATH; install bubblewrap 0.8 or later, or choose `code_sandbox: docker`")
    variables = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": HOME, "LANG": "C.UTF-8", **env}
    limits = {
        "memory": place.memory_mb << 10,
        "file": place.storage_mb << 10,
        "cpu": max(math.ceil(seconds), 1),
        "processes": PROCESSES,
    }
    return [
        *(program, "--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"),
        *("--die-with-parent", "--new-session", "--clearenv", "--hostname", "sandbox", "--json-status-fd", str(report_fd)),
        *(word for folder in SYSTEM for word in ("--ro-bind-try", folder, folder)),
        *("--proc", "/proc", "--dev", "/dev", "--size", str(SHARED_MEMORY), "--tmpfs", SHARED, "--remount-ro", "/dev"),
        *("--size", str(place.storage_mb << 20), "--tmpfs", HOME, "--remount-ro", "/", "--chdir", workdir),
        *(word for name, value in variables.items() for word in ("--setenv", name, value)),
        *("--", "/bin/bash", "-c", _LIMITED.format(**limits), "bash"),
    ]


async def _read(process: Process, clip: Clip, seconds: float) -> bool:
    """Reads the output of a process until it ends. Returns whether it ended within `seconds`."""
    assert process.stdout is not None
    try:
        async with asyncio.timeout(seconds):
            while piece := await process.stdout.read(1 << 16):
                clip.add(piece)
            await process.wait()
    except TimeoutError:
        return False
    return True


async def _kill(process: Process, report: BubblewrapReport, clip: Clip) -> None:
    """Kills a command and waits until all its processes have ended: the last one closes the output."""
    assert process.stdout is not None
    with suppress(ProcessLookupError):
        if process.returncode is None and (first := report.fact("child-pid")):
            os.kill(first, signal.SIGKILL)  # Killing the first process ends all processes inside.
        process.kill()
    with suppress(TimeoutError):
        async with asyncio.timeout(KILL):
            while piece := await process.stdout.read(1 << 16):
                clip.add(piece)
            await process.wait()


class BubblewrapReport:
    """A pipe through which bubblewrap reports on a command: JSON objects, one per line."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._output = b""

    def fact(self, name: str) -> int | None:
        """Returns `child-pid` (of the first process, as seen from outside the sandbox) or `exit-code`. None if it was not reported."""
        with suppress(BlockingIOError):
            while piece := os.read(self._reader, 1 << 12):
                self._output += piece
        facts = {name: value for line in self._output.splitlines() for name, value in json.loads(line).items()}
        value: int | None = facts.get(name)
        return value

    def close_writer(self) -> None:
        """Closes the writing end. A second call does nothing."""
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def close(self) -> None:
        self.close_writer()
        os.close(self._reader)


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]
