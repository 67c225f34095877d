"""The functions with which sessions and commands start, find, use and end stacks on this machine. It is the client of `stack_daemon.py`."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import assert_never

from pytest_agentbench.backends.stack.ownership import is_alive, kill_marked, leftovers, lock, processes, remove
from pytest_agentbench.backends.stack.placed import end_placed, has_notes
from pytest_agentbench.backends.stack.protocol import (
    FROM_DAEMON,
    BootFailed,
    BootProgress,
    FromDaemon,
    HoldAccepted,
    HoldDeclined,
    HoldStack,
    KeepStack,
    ServicesRestarting,
    Serving,
    StackDaemonConfig,
    StackEnded,
    StackFacts,
    StackReady,
    StopStack,
)
from pytest_agentbench.backends.stack.spec import StackSpec
from pytest_agentbench.backends.stack.stack_daemon import DAEMON_LOG, FACTS, SOCKET, peer
from pytest_agentbench.backends.stack.surroundings import inherited
from pytest_agentbench.backends.telemetry.samples import Target
from pytest_agentbench.errors import BackendError, MissingError
from pytest_agentbench.lib import codec, wire
from pytest_agentbench.lib.process import Child, is_suspended
from pytest_agentbench.lib.wire import OtherVersion
from pytest_agentbench.records import Endpoint, Json
from pytest_agentbench.suites.hashes import differences
from pytest_agentbench.suites.roles import ModelSpec

STOP_TIMEOUT = 180.0  # seconds for the stop of a stack, before its daemon and all leftovers are killed
SUSPENDED_LIMIT = 5.0  # seconds that a stack daemon may be suspended by SIGSTOP while a session waits for it
POLL = 0.5  # seconds between two checks whether a stack daemon is suspended
MAX_PATH = 107 if sys.platform == "linux" else 103  # bytes of the longest possible path of a socket
ANSWER = 20.0  # seconds for a stack daemon's answer to HoldStack

#: Reasons why a stack cannot be used
STOPPED_EARLY = "the stack was stopped while it started"
DAEMON_DIED = f"the daemon of the stack has died; see {DAEMON_LOG}"


def stacks_folder() -> Path:
    """Returns the folder with the stacks of this user. Its path is short, because a socket's path has at most about 100 characters."""
    own = os.environ.get("AGENTBENCH_STACKS")
    folder = Path(own).absolute() if own else Path(tempfile.gettempdir(), f"agentbench-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BackendError(
            f"the folder of stacks, {folder}, cannot be created: {error.strerror}; set AGENTBENCH_STACKS to another"
        ) from error
    if folder.stat().st_uid != os.getuid():  # Its owner could impersonate our stacks.
        raise BackendError(f"the folder of stacks, {folder}, belongs to another user; set AGENTBENCH_STACKS to another")
    return folder


def spec_hash(spec: StackSpec) -> str:
    """Returns a hash of all keys of a stack's YAML that decide what is started. Keys such as `name` and `note` do not."""
    of_clients = {"name", "note", "thresholds", "prices", "roles", "nodes", "labels", "warm_up", "sample_every", *ModelSpec.model_fields}
    content = spec.model_dump_json(exclude=of_clients)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


class HeldStack:
    """This process's connection to the daemon of a stack. The stack stays up as long as the connection is open.

    `ready` waits for the end of the boot. `death` then blocks until the stack ends. Another thread may call `stop` or `let_go` at any time,
    which ends both calls. `stop` ends the stack; `let_go` only closes the connection, so a kept stack stays up.
    """

    def __init__(self, home: Path, connection: socket.socket, child: Child | None) -> None:
        self.home, self._connection, self._child = home, connection, child
        self._daemon = peer(connection)
        self._suspended_since: float | None = None  # seconds, time.monotonic()
        self._leaving = False
        self.is_orphaned = False  # its daemon died while the stack served
        self.boot: Json = {}  # facts of the boot
        self.metrics: tuple[Target, ...] = ()

    def ready(self, on_progress: Callable[[str], None] = lambda _: None) -> Endpoint:
        """Waits until the boot of the stack has succeeded, and returns its endpoint.

        Raises MissingError if this machine lacks something, and BackendError if the boot fails for another reason.
        """
        while True:
            match message := self._next_of_boot():
                case BootProgress(text):
                    on_progress(text)
                case StackReady():
                    self.boot, self.metrics = message.boot, message.metrics
                    return message.endpoint
                case BootFailed() | StackEnded() if self._leaving:
                    raise BackendError(STOPPED_EARLY)
                case BootFailed(reason, missing):
                    raise (MissingError if missing else BackendError)(reason)
                case StackEnded(reason):
                    raise BackendError(reason)
                case HoldAccepted() | HoldDeclined() | ServicesRestarting():
                    pass
                case _:
                    assert_never(message)

    def _next_of_boot(self) -> FromDaemon:
        try:
            while not select.select([self._connection], [], [], POLL)[0]:
                if self._is_suspended():
                    raise BackendError(f"the daemon of the stack, {self._suspended}, and the stack did not start; see {DAEMON_LOG}")
            return self._next()
        except (OSError, ValueError) as error:  # ValueError: another thread has closed the connection
            raise BackendError(STOPPED_EARLY if self._leaving else DAEMON_DIED) from error

    def death(self, on_restart: Callable[[ServicesRestarting], None] = lambda _: None) -> str:
        """Blocks until the stack dies, and returns the reason. Returns an empty string after `stop` or `let_go`.

        `on_restart` is called with each message about services that are being restarted or serve again.
        """
        try:
            while not isinstance(message := self._next(), StackEnded):
                if isinstance(message, ServicesRestarting):
                    on_restart(message)
            why = message.reason
        except BackendError as error:
            why = str(error)
        except (OSError, ValueError):
            self.is_orphaned = not self._leaving
            why = DAEMON_DIED
        return "" if self._leaving else why

    def stop(self) -> str:
        """Stops the stack. Kills a stack daemon that is suspended, and the leftovers of one that was killed or died.

        Returns a sentence if the stack daemon was suspended or the stack has not stopped, else an empty string.
        """
        note = ""
        self._leaving = True
        with suppress(OSError):
            wire.send(self._connection, StopStack())
        end = time.monotonic() + STOP_TIMEOUT
        while is_alive(str(self.home)) and time.monotonic() < end:
            if not note and self._is_suspended():
                note = f"the daemon of the stack in {self.home}, {self._suspended}, so it was ended by SIGKILL, and its services with it"
                with suppress(ProcessLookupError):
                    os.kill(self._daemon, signal.SIGKILL)
            time.sleep(0.02)
        self.let_go()
        if self._child is not None:
            self._child.stop()
        if is_alive(str(self.home)):
            return f"the stack in {self.home} has not stopped within {STOP_TIMEOUT:g} s; {DAEMON_LOG} shows what it waits for"
        clean_up_one(self.home)
        return note

    def _is_suspended(self) -> bool:
        """Returns whether the stack daemon has been suspended for SUSPENDED_LIMIT seconds, as far as calls of this method have seen."""
        if not self._daemon or not is_suspended(self._daemon):
            self._suspended_since = None
            return False
        now = time.monotonic()
        self._suspended_since = self._suspended_since or now
        return now - self._suspended_since >= SUSPENDED_LIMIT

    def terminate(self) -> None:
        """Sends SIGTERM to the stack daemon, which then stops the stack. Raises BackendError if its process id is unknown."""
        if not self._daemon:
            raise BackendError(f"the stack in {self.home} belongs to another version of pytest-agentbench; use that version to end it")
        with suppress(ProcessLookupError):
            os.kill(self._daemon, signal.SIGTERM)

    @property
    def _suspended(self) -> str:
        return f"process {self._daemon}, was suspended by SIGSTOP for {SUSPENDED_LIMIT:g} s"

    def keep(self, seconds: float) -> None:
        """Makes the stack stay up for this time after `let_go`."""
        with suppress(OSError):
            wire.send(self._connection, KeepStack(seconds))
        if self._child is not None:
            self._child.leave_alone()

    def let_go(self) -> None:
        """Closes the connection, so that the stack ends unless it is kept."""
        self._leaving = True
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)  # This wakes a thread that waits in `death`.
        self._connection.close()

    def _next(self) -> FromDaemon:
        header, _ = wire.receive(self._connection)
        try:
            return FROM_DAEMON.read(header)
        except ValueError as error:
            raise BackendError(f"a message of the stack daemon in {self.home} cannot be read: {error}; see {DAEMON_LOG}") from error


def start(spec: StackSpec, logs: Path, *, gpu_wait: float, warm_up: int) -> HeldStack:
    """Starts a stack daemon, which boots the stack, and connects to it. Raises BackendError if that is impossible.

    `logs` is the folder of the logs, `gpu_wait` the seconds to wait for GPUs, and `warm_up` the number of requests after the boot.
    """
    home = _new_home(spec.name)
    owned = lock(home)
    config = StackDaemonConfig(
        spec=spec.model_dump(mode="json"),
        spec_hash=spec_hash(spec),
        inherited=inherited(spec),
        home=home,
        logs=logs,
        gpu_wait=gpu_wait,
        warm_up=warm_up,
        lock=owned,
    )
    try:
        child = Child("pytest_agentbench.backends.stack.stack_daemon", config, logs / DAEMON_LOG, pass_fds=(owned,))
    finally:
        os.close(owned)
    try:
        child.ready(Serving)
        return _hold(home, child)
    except (BackendError, OtherVersion) as error:
        child.stop()
        clean_up_one(home)
        raise error if isinstance(error, BackendError) else BackendError(str(error)) from error


def _new_home(name: str) -> Path:
    """Creates the folder of a new stack. Raises BackendError if that is impossible."""
    home = stacks_folder() / f"{re.sub(r'[^A-Za-z0-9_-]', '_', name)[:20]}-{secrets.token_hex(4)}"
    if len(os.fsencode(home / SOCKET)) > MAX_PATH:
        raise BackendError(
            f"{home / SOCKET} is longer than the {MAX_PATH} bytes that a socket's path may have; set AGENTBENCH_STACKS=/tmp/s"
        )
    home.mkdir(mode=0o700)
    return home


def find_kept(spec: StackSpec) -> HeldStack | str:
    """Connects to a kept stack that was started from the same YAML and has no holder.

    The environment variables, package versions and files that the stack inherited must not have changed since. Without
    such a stack, returns a sentence that says why a kept stack of this YAML cannot be used, or an empty string if none exists.
    """
    now, wanted_hash, why = inherited(spec), spec_hash(spec), ""
    for home, facts in running():
        if facts.spec_hash != wanted_hash or facts.state != "ready" or facts.keep_s is None:
            continue
        if changed := differences(facts.inherited, now):
            why = why or f"with something else: {'; '.join(changed)}"
            continue
        try:
            return _hold(home, alone=True)
        except OtherVersion:
            why = why or "by another version of pytest-agentbench"
        except BackendError:
            pass
    return why and f"a kept {spec.name} is not used, because it was started {why}; `agentbench backend down {spec.name}` ends it"


def running() -> Iterator[tuple[Path, StackFacts]]:
    """Yields (folder, facts) of every stack of this user that has a living daemon."""
    for file in _facts_files():
        if is_alive(str(file.parent)):
            with suppress(OSError):  # The stack may have just ended.
                yield file.parent, _read_facts(file)


def _facts_files() -> list[Path]:
    return sorted(stacks_folder().glob(f"*/{FACTS}"))


def _read_facts(file: Path) -> StackFacts:
    """Reads `stack.json`. If it cannot be read, returns facts with only a name, which is that of the stack's folder."""
    try:
        return codec.read(StackFacts, json.loads(file.read_text()))
    except ValueError:
        return StackFacts(file.parent.name)


def end(home: Path) -> str:
    """Ends a stack, even if other processes use it. Returns the result of `HeldStack.stop`.

    A stack daemon of another version gets SIGTERM, because it accepts no messages of this version. Raises BackendError if the stack daemon
    does not answer, or if the stack does not end.
    """
    try:
        held = _hold(home)
    except OtherVersion:
        held = HeldStack(home, _connect(home), None)
        try:
            held.terminate()
        except BackendError:
            held.let_go()
            raise
    note = held.stop()
    if is_alive(str(home)):
        raise BackendError(note)
    return note


def _connect(home: Path) -> socket.socket:
    """Connects to the daemon of a stack, with a timeout of ANSWER seconds. Raises BackendError if it does not answer."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(ANSWER)
        connection.connect(str(home / SOCKET))
    except OSError as error:
        connection.close()
        raise BackendError(f"the stack daemon in {home} does not answer: {error}") from error
    return connection


def _hold(home: Path, child: Child | None = None, *, alone: bool = False) -> HeldStack:
    """Connects to a stack's daemon and becomes a holder of the stack. With `alone`, the stack must have no other holder.

    Raises BackendError if that is impossible, and OtherVersion if the daemon is of another version. `child` is the daemon if this process
    has started it.
    """
    connection = _connect(home)
    try:
        wire.send(connection, HoldStack(alone))
        answer = FROM_DAEMON.read(wire.receive(connection)[0])
        connection.settimeout(None)
    except (OSError, ValueError) as error:
        connection.close()
        if isinstance(error, OtherVersion):
            raise
        raise BackendError(f"the stack daemon in {home} does not answer: {error}") from error
    if isinstance(answer, HoldDeclined):
        connection.close()
        raise BackendError(f"the stack in {home} is used by another session, or about to end; wait until it has ended")
    return HeldStack(home, connection, child)


def clean_up() -> list[tuple[str, list[str]]]:
    """Ends all processes and containers of this user's stacks whose daemon is dead. Touches nothing that has no mark of a stack.

    Returns (folder of the stack, descriptions of what was ended). Marks with folders outside `stacks_folder` are ignored, because
    root and the Docker Engine also see the stacks of other users.
    """
    marked = {of for _, of in processes()} | {left.stack for left in leftovers(is_alive)}
    homes = {str(home) for home in stacks_folder().iterdir() if home.is_dir()}
    homes |= {home for home in marked if Path(home).parent == stacks_folder()}
    return [(home, clean_up_one(Path(home))) for home in sorted(homes) if not is_alive(home)]


def clean_up_orphans() -> str:
    """Cleans up at the start of a session. Returns one sentence about what was ended, or an empty string.

    Unlike `clean_up`, it skips folders without `stack.json`, because another session may be about to start a stack daemon there.
    """
    ended = []
    for file in _facts_files():
        if not is_alive(str(file.parent)):
            with suppress(OSError):  # Its session may have just cleaned up.
                name = _read_facts(file).backend
                ended.append(f"{name} ({', '.join(clean_up_one(file.parent)) or 'only its folder'})")
    return f"cleaned up after a killed stack daemon: {' and '.join(ended)}" if ended else ""


def clean_up_one(home: Path) -> list[str]:
    """Ends the processes of one stack whose daemon is dead, and what clusters run for it, and removes its containers.

    Returns a description of each.
    """
    killed = [f"process {pid}" for pid in kill_marked(str(home))]
    left = leftovers(lambda stack: stack != str(home))
    remove(left)
    placed = end_placed(home)
    if not has_notes(home):
        shutil.rmtree(home, ignore_errors=True)
    return [*killed, *placed, *(f"{each.kind} {each.name}" for each in left)]
