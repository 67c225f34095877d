"""A sandbox that is an environment of Harbor: a container or a machine in a cloud, controlled by the package `harbor`.

Harbor runs commands and copies files. The other guarantees of a sandbox are implemented with commands inside, which need bash, coreutils
and tar: the time limit of a command, ending all processes, and checking the type of a file before it is read.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import shlex
import signal
import stat
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pytest_agentbench.errors import InfraError
from pytest_agentbench.lib.abandoned import refuse_abandoned
from pytest_agentbench.lib.cut_marks import ending
from pytest_agentbench.sandbox.command import IN_ORDER, KILL, KILL_MARKED, Clip, rejected_command
from pytest_agentbench.sandbox.sandbox import LARGEST_FILE, CommandResult, File, bring_tests, tar_of

T = TypeVar("T")

#: Environment variable of all processes of a command. It differs from that of `command`, which the environment itself may use.
VARIABLE = "AGENTBENCH_HARBOR_COMMAND"

GRACE = 30.0  # seconds after a command's time limit in which Harbor has to report its end
COPY = 600.0  # seconds for copying a file
_KILLED = 128 + signal.SIGKILL
_NO_FILE = 44  # exit code of _STAT if the file does not exist

_UPLOAD = "/.agentbench-upload.tar"

#: Prints the mode (in hexadecimal digits), user id and size of a path, without following a link.
_STAT = f'if [ -e "$1" ] || [ -L "$1" ]; then exec stat -c "%f %u %s" -- "$1"; else exit {_NO_FILE}; fi'

_KINDS: Mapping[int, str] = {stat.S_IFDIR: "a folder", stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe"}

#: Identifies a namespace of process ids: the boot id of its kernel, and its own id.
NAMESPACE = "cat /proc/sys/kernel/random/boot_id; readlink /proc/self/ns/pid"

#: Lists the running processes with their start times, because process ids are reused.
PROCESSES = r"""
for folder in /proc/[0-9]*; do
  line=; { read -r -d '' line <"$folder/stat"; } 2>/dev/null
  [[ $line ]] && { set -- ${line##*) }; echo "${folder#/proc/}:${20}"; }
done
exit 0
"""

#: Kills all processes except those in $1, itself and its ancestors. Exits with 0 when no other process is left.
_KILL_OTHERS = r"""
kept=" $1 "; own=" "; pid=$$
while [[ $pid -gt 1 ]]; do
  own+="$pid "; line=
  { read -r -d '' line <"/proc/$pid/stat"; } 2>/dev/null
  [[ $line ]] || break
  set -- ${line##*) }; pid=$2
done
for round in {1..50}; do
  left=
  for folder in /proc/[0-9]*; do
    pid=${folder#/proc/}; line=
    [[ $pid == 1 || $own == *" $pid "* ]] && continue
    { read -r -d '' line <"$folder/stat"; } 2>/dev/null
    [[ $line ]] || continue
    set -- ${line##*) }
    [[ $1 == Z || $kept == *" $pid:${20} "* ]] && continue
    kill -9 "$pid" 2>/dev/null; left=1
  done
  [[ $left ]] || exit 0
done
exit 1
"""


class HarborSandbox:
    """An environment of Harbor with the interface of a sandbox. The environment is started by the caller, and stopped by `end`."""

    def __init__(
        self,
        environment: Any,
        kind: str,
        *,
        another: Callable[[], Awaitable[HarborSandbox]] | None = None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """`environment` is a running BaseEnvironment. `another` opens a second sandbox for the task. `on_end` is called after the end."""
        self.kind = kind
        self._environment, self._another, self._on_end = environment, another, on_end
        self._what = f"the sandbox {kind} {environment.session_id}"
        self._kept = ""  # processes of the environment itself
        self._ended = False

    async def settle(self) -> None:
        """Stores which processes belong to the environment itself, so that they are never killed. Call it before the sandbox is used.

        Raises InfraError if the environment shares its process ids with this machine.
        """
        namespace = (await self._run_checked(NAMESPACE)).split()
        if namespace == await _own_namespace():
            raise InfraError(
                f"{self._what} shares its process ids with this machine, so an agent's processes could not be killed; "
                "choose an environment with a PID namespace of its own"
            )
        self._kept = " ".join((await self._run_checked(PROCESSES)).split())

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
        words = shlex.join(("timeout", "-s", "KILL", f"{seconds:.3f}", "bash", "-c", IN_ORDER, "bash", "-c", command))
        if why := rejected_command(words):
            return why
        mark, began = secrets.token_hex(8), time.monotonic()
        execution = self._environment.exec(
            words,
            cwd=workdir,
            env={**(env or {}), VARIABLE: mark},
            timeout_sec=math.ceil(seconds + GRACE),
            user=user,
        )
        try:
            async with asyncio.timeout(seconds + 2 * GRACE):
                done = await self._call_harbor("a command", execution)
        except TimeoutError:
            raise InfraError(
                f"{self._what} did not report the end of a command {2 * GRACE:g} s after its time limit; try `sandbox: docker`"
            ) from None
        took, clip = time.monotonic() - began, Clip()
        clip.add(f"{done.stdout or ''}{done.stderr or ''}".encode())
        if done.return_code == _KILLED and took >= seconds:
            await self._run(KILL_MARKED, f"{VARIABLE}={mark}", user=user)
            return CommandResult(None, clip.text, clip.omitted, took)
        return CommandResult(done.return_code, clip.text, clip.omitted, took)

    async def put(self, source: Path, target: str) -> None:
        with tar_of(source, target) as tar, tempfile.NamedTemporaryFile(prefix="agentbench-", suffix=".tar") as file:
            while piece := tar.read(1 << 20):
                file.write(piece)
            file.flush()
            await self._call_harbor(target, self._environment.upload_file(Path(file.name), _UPLOAD))
        await self._run_checked(f"tar -xpf {_UPLOAD} --same-owner -C / && rm -f {_UPLOAD}", seconds=COPY)

    async def get(self, source: str, *, most: int = LARGEST_FILE) -> File:
        code, output = await self._run(_STAT, source)
        if code == _NO_FILE:
            raise FileNotFoundError(f"there is no {source} in the sandbox")
        if code != 0:
            raise OSError(f"{source} in the sandbox cannot be read: {ending(output.strip(), 300)}")
        mode, owner, size = output.split()
        if not stat.S_ISREG(int(mode, 16)):
            raise OSError(f"{source} in the sandbox cannot be read: it is {_KINDS.get(stat.S_IFMT(int(mode, 16)), 'no file')}")
        if int(size) > most:
            raise OSError(f"{source} in the sandbox cannot be read: it has {size} bytes, and {most} is the most that is read")
        with tempfile.TemporaryDirectory(prefix="agentbench-") as folder:
            copy = Path(folder, "file")
            await self._call_harbor(source, self._environment.download_file(source, copy))
            return File(copy.read_bytes(), int(owner))  # noqa: ASYNC240 - no more than `most`

    async def end_processes(self) -> None:
        code, output = await self._run(_KILL_OTHERS, self._kept)
        if code != 0:
            raise InfraError(f"{self._what}: its processes cannot be killed: {ending(output.strip(), 300)}")

    async def halt(self) -> None:
        await self.end_processes()

    async def changed_files(self, tests: Path) -> None:  # noqa: ARG002 - Harbor cannot list differences from an image
        return None

    async def bring_tests(self, tests: Path, user: str | None) -> int:
        return await bring_tests(self, tests, user)

    def interpreter(self, name: str) -> str:
        return name

    async def fresh(self) -> HarborSandbox:
        if self._another is None:
            raise InfraError(f"{self._what}: a second sandbox cannot be opened for this task")
        return await self._another()

    async def end(self) -> None:
        if self._ended:
            return
        self._ended = True
        try:
            await asyncio.shield(self._call_harbor("its end", self._environment.stop(delete=True)))
        finally:
            self._on_end()

    async def _run_checked(self, script: str, seconds: float = KILL) -> str:
        """Runs a script of this package as root and returns its output. Raises InfraError if it fails."""
        code, output = await self._run(script, seconds=seconds)
        if code != 0:
            raise InfraError(f"{self._what}: {ending(output.strip(), 300) or f'exit code {code}'}")
        return output

    async def _run(self, script: str, *arguments: str, user: str | None = "root", seconds: float = KILL) -> tuple[int, str]:
        words = shlex.join(("bash", "-c", script, "bash", *arguments))
        execution = self._environment.exec(words, cwd="/", timeout_sec=math.ceil(seconds), user=user)
        done = await self._call_harbor("a command", execution)
        return done.return_code, f"{done.stdout or ''}{done.stderr or ''}"

    async def _call_harbor(self, what: str, answer: Awaitable[T]) -> T:
        """Awaits an answer of Harbor. Any error becomes an InfraError, because it cannot come from the agent."""
        if self._ended and what != "its end":
            raise InfraError(f"{self._what} has ended")
        try:
            return await answer
        except InfraError:
            raise
        except Exception as error:
            raise InfraError(f"{self._what}: {what}: {type(error).__name__}: {' '.join(str(error).split())}") from error


async def _own_namespace() -> list[str]:
    """Returns the words that identify the PID namespace of this process (output of NAMESPACE). Empty if the system does not show them."""
    process = await asyncio.create_subprocess_exec("sh", "-c", NAMESPACE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL)
    output, _ = await process.communicate()
    return output.decode().split()
