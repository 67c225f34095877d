"""Runs a command in a container: reads its output, truncates it, and enforces its time limit by killing all processes that it started."""

from __future__ import annotations

import secrets
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

from pytest_agentbench.errors import InfraError
from pytest_agentbench.lib.cut_marks import mark
from pytest_agentbench.sandbox.sandbox import CommandResult

KEPT = 1 << 20  # bytes kept of a command's output


class Clip:
    """Keeps the beginning and the end of the bytes added to it, in bounded memory."""

    def __init__(self, kept: int = KEPT) -> None:
        self._half = kept // 2
        self._head, self._tail = bytearray(), bytearray()
        self.omitted = 0  # bytes left out

    def add(self, piece: bytes) -> None:
        room = self._half - len(self._head)
        self._head += piece[:room]
        self._tail += piece[room:]
        if (excess := len(self._tail) - self._half) > 0:
            self.omitted += excess
            del self._tail[:excess]

    @property
    def text(self) -> str:
        """The whole output, or its beginning and end with a line between them that says how much is left out."""
        if not self.omitted:
            return (self._head + self._tail).decode(errors="replace")
        return f"{self._head.decode(errors='replace')}\n{mark(self.omitted)}\n{self._tail.decode(errors='replace')}"


#: Environment variable of all processes of a command, unless they clear their environment.
VARIABLE = "AGENTBENCH_COMMAND"

LONGEST = 128 * 1024 - 1  # bytes of the longest argument that the kernel accepts
CANNOT_RUN = 126  # exit code of a shell for a command that it cannot execute
KILL = 20.0  # seconds that killing may take
_SIGKILL = 128 + signal.SIGKILL
_SETTLE = 5.0  # seconds between the end of a command's output and its exit code

#: Kills all processes. Exits with 0 when only this script and the first process are left, which takes a while on a busy machine.
#: `kill` is the builtin of bash, which does not kill its caller.
KILL_ALL = "SECONDS=0; while ((SECONDS < 6)); do kill -9 -1 2>/dev/null; set -- /proc/[0-9]*; (($# <= 2)) && exit 0; done; exit 1"

#: Sends stdout and stderr through one pipe, so that they stay in order.
IN_ORDER = 'exec "$0" "$@" 2>&1'

#: Kills the processes with the mark, their descendants, and the processes of their sessions. Exits when it finds no more of them.
KILL_MARKED = r"""
mark="$1"; killed=" "
for round in 1 2 3 4 5; do
  new=
  for folder in /proc/[0-9]*; do
    pid=${folder#/proc/}; line=
    [[ $pid == 1 || $pid == $$ || $killed == *" $pid "* ]] && continue
    { read -r -d '' line <"$folder/stat"; } 2>/dev/null
    [[ $line ]] || continue
    set -- ${line##*) }
    related=; [[ $killed == *" $2 "* || $killed == *" $4 "* ]] && related=1
    if [[ ! $related ]]; then
      while IFS= read -r -d '' variable; do [[ $variable == "$mark" ]] && related=1; done 2>/dev/null <"$folder/environ"
    fi
    [[ $related ]] && kill -9 "$pid" 2>/dev/null && killed+="$pid " && new=1
  done
  [[ $new ]] || exit 0
done
"""


def rejected_command(command: str) -> CommandResult | None:
    """Returns the result of a command that cannot be passed to a shell, or None if it can."""
    if (size := len(command.encode(errors="replace"))) <= LONGEST and "\0" not in command:
        return None
    why = "it has a NUL character" if "\0" in command else f"it has {size} bytes, and {LONGEST} is the most"
    return CommandResult(CANNOT_RUN, f"bash: the command cannot be run: {why}\n")


class Execution:
    """One execution of a command in a container. `run` blocks; another thread may call `abandon` meanwhile."""

    def __init__(
        self, api: Any, container: str, *, user: str, workdir: str | None, env: Mapping[str, str], shell: Sequence[str] = ("bash",)
    ) -> None:
        """`shell` is the command that starts bash in the container."""
        self._shell = list(shell)
        self._api, self._container, self._user, self._workdir, self._env = api, container, user, workdir, dict(env)
        self._mark = secrets.token_hex(8)
        self._socket: socket.socket | None = None
        self._abandoned = False

    def run(self, command: str, seconds: float) -> CommandResult:
        """Runs a command for at most `seconds`, then kills all its processes."""
        if why := rejected_command(command):
            return why
        clip, began = Clip(), time.monotonic()
        execution = self._create(
            [*self._shell, "-c", IN_ORDER, *self._shell, "-c", command], self._user, {**self._env, VARIABLE: self._mark}
        )
        ended = self._read(execution, clip, began + seconds)
        code = self._exit_code(execution) if ended else None
        if not ended:
            self._run(KILL_MARKED + KILL_ALL, f"{VARIABLE}={self._mark}")
        elif code in (None, _SIGKILL) and self._run(":") != 0 and not self._is_running():
            raise InfraError("the sandbox ended while a command ran; its container was removed or its deadline has passed")
        return CommandResult(code, clip.text, clip.omitted, time.monotonic() - began)

    def abandon(self) -> None:
        """Makes `run` return early. The processes of the command continue to run."""
        self._abandoned = True
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _create(self, words: list[str], user: str, env: Mapping[str, str]) -> str:
        response = self._api.exec_create(self._container, words, user=user, workdir=self._workdir, environment=dict(env))
        return str(response["Id"])

    def _read(self, execution: str, clip: Clip, deadline: float) -> bool:
        """Reads the output of an execution. Returns whether it ended before the deadline (monotonic seconds)."""
        url = f"{self._api.base_url}/v{self._api.api_version}/exec/{execution}/start"
        with closing(self._api.post(url, json={"Detach": False, "Tty": False}, stream=True, timeout=self._api.timeout)) as response:
            _check(response)
            reader = response.raw._fp.fp  # The client's own method would lose the data that arrived with the headers.
            self._socket = reader.raw._sock
            if self._abandoned:
                return True
            try:
                for piece in _pieces(reader, self._socket, deadline):
                    clip.add(piece)
            except TimeoutError:
                return False
            return True

    def _exit_code(self, execution: str) -> int | None:
        end = time.monotonic() + _SETTLE
        while (facts := self._api.exec_inspect(execution))["Running"] and time.monotonic() < end and not self._abandoned:
            time.sleep(0.02)
        code = facts["ExitCode"]
        return None if code is None else int(code)

    def _is_running(self) -> bool:
        """Returns whether the container still runs. If it does, starting a process may have failed because its memory is full.

        Waits a moment, because a container that is ending still counts as running.
        """
        end = time.monotonic() + _SETTLE
        while up := bool(self._api.inspect_container(self._container)["State"]["Running"]):
            if time.monotonic() > end:
                break
            time.sleep(0.1)
        return up

    def _run(self, script: str, *arguments: str) -> int | None:
        """Runs a script of this package and returns its exit code.

        The script runs as the command's user, because only that user may read the environment of the command's processes.
        """
        execution = self._create([*self._shell, "-c", script, "bash", *arguments], self._user, {})
        self._read(execution, Clip(), time.monotonic() + KILL)
        return self._exit_code(execution)


def _check(response: Any) -> None:
    from docker.errors import create_api_error_from_http_exception
    from requests import HTTPError

    try:
        response.raise_for_status()
    except HTTPError as error:
        create_api_error_from_http_exception(error)


def _pieces(reader: Any, connection: socket.socket, deadline: float) -> Iterator[bytes]:
    """Yields the output of a command as it arrives.

    The Docker Engine sends it in frames with a header of eight bytes, of which the last four are the length.
    """
    rest, waiting = 0, bytearray()
    while True:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        if not (piece := reader.read1(1 << 16)):
            return
        waiting += piece
        while waiting:
            if not rest:
                if len(waiting) < 8:
                    break
                rest = int.from_bytes(waiting[4:8], "big")
                del waiting[:8]
                continue
            content = bytes(waiting[:rest])
            del waiting[: len(content)]
            rest -= len(content)
            yield content
        if time.monotonic() > deadline:
            raise TimeoutError
