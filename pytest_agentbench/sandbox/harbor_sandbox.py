"""A sandbox that is an environment of Harbor: a container or a machine in a cloud, controlled by the package `harbor`.

Harbor runs commands and copies files. The other guarantees of a sandbox are implemented with commands inside, which need bash, coreutils
and tar: the time limit of a command, ending all processes, and checking the type of a file before it is read.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import math
import os
import re
import secrets
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from pytest_agentbench.errors import ConfigError, InfraError, unknown_name
from pytest_agentbench.lib.abandoned import refuse_abandoned
from pytest_agentbench.lib.cut_marks import ending
from pytest_agentbench.lib.threads import in_thread
from pytest_agentbench.lib.user_code import is_import_path
from pytest_agentbench.records import RolloutKey
from pytest_agentbench.sandbox.command import IN_ORDER, KILL, KILL_MARKED, Clip, rejected_command
from pytest_agentbench.sandbox.sandbox import LARGEST_FILE, CommandResult, File, bring_tests, tar_of
from pytest_agentbench.suites.suite import HARBOR, Task

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


PACKAGE = "harbor"
OLDEST = (3, 12)  # oldest Python version that Harbor supports

#: Environment variable that controls Harbor's telemetry, which is on by default. Set to off here, unless the user has set it.
TELEMETRY = "HARBOR_TELEMETRY"


def check_harbor(what: str) -> None:
    """Raises ConfigError with the command to install Harbor if it is missing. `what` is the setting that needs it."""
    os.environ.setdefault(TELEMETRY, "0")
    if importlib.util.find_spec(PACKAGE) is not None:
        return
    python = ".".join(map(str, OLDEST))
    here = f"; this is Python {sys.version_info.major}.{sys.version_info.minor}" if sys.version_info < OLDEST else ""
    raise ConfigError(
        f"{what} needs the package `harbor`, which is not installed here: pip install 'pytest-agentbench[harbor]', "
        f"under Python {python} or newer{here}"
    )


START = 300.0  # seconds for the start of an environment, in addition to the build timeout
COMPOSE = "docker"  # the environment that needs `docker compose`


def check_sandbox(sandbox: str) -> None:
    """Raises ConfigError if `sandbox` of suite.yaml is unknown, or not available in this interpreter."""
    if not sandbox.startswith(HARBOR):
        return
    check_harbor(f"sandbox: {sandbox}")
    name = sandbox.removeprefix(HARBOR)
    from harbor.models.environment_type import EnvironmentType

    known = [each.value for each in EnvironmentType]
    if not is_import_path(name) and name not in known:
        raise ConfigError(
            f"sandbox: {unknown_name('environment of Harbor', name, known)}, or an import path such as my_package.clouds:Ours"
        )


async def open_harbor_sandbox(key: RolloutKey, task: Task, on_end: Callable[[], None]) -> HarborSandbox:
    """Starts an environment of Harbor as a sandbox. Raises InfraError if that fails."""
    await in_thread(_check_ready, task.sandbox)
    folder = Path(tempfile.mkdtemp(prefix="agentbench-harbor-"))

    def end() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        on_end()

    environment = None
    try:
        environment = _environment(key, task, folder)
        async with asyncio.timeout(task.build_timeout_s + START):
            await environment.start(force_build=False)
        sandbox = HarborSandbox(environment, task.sandbox, another=lambda: open_harbor_sandbox(key, task, lambda: None), on_end=end)
        await sandbox.settle()
    except BaseException as error:
        with suppress(Exception):  # The original error is reported.
            if environment is not None:
                await asyncio.shield(environment.stop(delete=True))
        end()
        if isinstance(error, InfraError) or not isinstance(error, Exception):
            raise
        why = f"it did not start within {task.build_timeout_s + START:g} s" if isinstance(error, TimeoutError) else str(error)
        raise InfraError(f"the sandbox {task.sandbox} of {key}: {type(error).__name__}: {' '.join(why.split())}") from error
    return sandbox


@functools.cache
def _check_ready(sandbox: str) -> None:
    """Raises InfraError if this machine lacks a program or key that an environment needs. Success is cached."""
    try:
        check_sandbox(sandbox)
    except ConfigError as error:
        raise InfraError(str(error)) from error
    from harbor.environments.factory import EnvironmentFactory

    name = sandbox.removeprefix(HARBOR)
    try:
        EnvironmentFactory.run_preflight(*_environment_type(name))
    except (Exception, SystemExit) as error:
        raise InfraError(f"{sandbox}: {error}") from error
    if name == COMPOSE and (why := compose_problem()):
        raise InfraError(f"{sandbox}: {why}")


def compose_problem() -> str:
    """Returns what is missing for Harbor's environment `docker`, or an empty text if nothing is."""
    try:
        done = subprocess.run(["docker", "compose", "version", "--short"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"`docker compose version` cannot be run: {error}; install Docker Compose version 2"
    if done.returncode == 0 and (version := re.match(r"v?(\d+)\.", done.stdout)) and int(version[1]) >= 2:
        return ""
    return "Harbor's `docker` needs Docker Compose version 2 (`docker compose`), which is not installed; Debian trixie has a package"


def _environment_type(name: str) -> tuple[Any, str | None]:
    """Returns Harbor's (type, import path) for an environment. One of them is None."""
    from harbor.models.environment_type import EnvironmentType

    return (None, name) if is_import_path(name) else (EnvironmentType(name), None)


def _environment(key: RolloutKey, task: Task, folder: Path) -> Any:
    """Creates an environment of Harbor without starting it. `folder` is for the files that it writes."""
    from harbor.environments.factory import EnvironmentFactory
    from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
    from harbor.models.trial.config import EnvironmentConfig as Choice
    from harbor.models.trial.paths import TrialPaths

    type, import_path = _environment_type(task.sandbox.removeprefix(HARBOR))
    config = EnvironmentConfig(
        docker_image=task.image or None,
        build_timeout_sec=task.build_timeout_s,
        cpus=math.ceil(task.cpus),
        memory_mb=task.memory_mb,
        storage_mb=task.storage_mb,
        workdir=task.workdir,
        env=dict(task.env),
    )
    policy = NetworkPolicy(network_mode=NetworkMode(task.network))
    paths = TrialPaths(folder)
    paths.mkdir()
    return EnvironmentFactory.create_environment_from_config(
        Choice(type=type, import_path=import_path),
        environment_dir=Path(task.folder) / "environment",
        environment_name=key.scenario,
        session_id=f"{re.sub(r'[^A-Za-z0-9-]', '-', key.scenario)[:40]}__{secrets.token_hex(4)}",
        trial_paths=paths,
        task_env_config=config,
        network_policy=policy,
        phase_network_policies=[policy],
    )
