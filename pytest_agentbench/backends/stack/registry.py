"""Stacks that run on this machine: started, found again, held and let go. The other side of `guardian.py`."""

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

from pytest_agentbench.backends.stack.guardian import FACTS, GUARDIAN_LOG, SOCKET, peer
from pytest_agentbench.backends.stack.inherited import inherited
from pytest_agentbench.backends.stack.leftovers import leftovers, remove
from pytest_agentbench.backends.stack.ownership import is_alive, kill_marked, lock, processes
from pytest_agentbench.backends.stack.protocol import Serving
from pytest_agentbench.backends.stack.spec import StackSpec
from pytest_agentbench.errors import BackendError, MissingError
from pytest_agentbench.lib import wire
from pytest_agentbench.lib.process import Child, is_suspended
from pytest_agentbench.records import Endpoint, Json
from pytest_agentbench.suites.hashes import differences
from pytest_agentbench.suites.roles import ModelSpec

STOPPED = 180.0  # seconds that a stack gets to stop, before its guardian and all that is left are killed
SUSPENDED = 5.0  # seconds that a guardian may be suspended by SIGSTOP while a session waits for it
LOOK = 0.5  # seconds between two looks at whether a guardian is suspended
LONGEST = 107 if sys.platform == "linux" else 103  # bytes of a socket's path
ANSWER = 20.0  # seconds that a guardian gets to say whether it can be held


def stacks_folder() -> Path:
    """Where stacks of this user have their folders; short, for a socket's path may have some 100 characters."""
    own = os.environ.get("AGENTBENCH_STACKS")
    folder = Path(own).absolute() if own else Path(tempfile.gettempdir(), f"agentbench-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BackendError(f"the folder of stacks, {folder}, cannot be made: {error.strerror}; AGENTBENCH_STACKS names another") from error
    if folder.stat().st_uid != os.getuid():  # whoever owns it could answer for our stacks
        raise BackendError(f"the folder of stacks, {folder}, belongs to another user; AGENTBENCH_STACKS names another")
    return folder


def spec_hash(spec: StackSpec) -> str:
    """Of everything that decides what is started; a name and a note do not."""
    of_clients = {"name", "note", "thresholds", "prices", "roles", "labels", "warm_up", "sample_every", *ModelSpec.model_fields}
    said = spec.model_dump_json(exclude=of_clients)
    return hashlib.sha256(said.encode()).hexdigest()[:16]


class HeldStack:
    """A stack with a connection to its guardian: as long as it is open the stack stays."""

    def __init__(self, home: Path, connection: socket.socket, child: Child | None) -> None:
        self.home, self._connection, self._child = home, connection, child
        self._guardian = peer(connection)
        self._suspended_since: float | None = None  # seconds, time.monotonic()
        self._leaving = False
        self.is_orphaned = False  # its guardian died while the stack served
        self.boot: Json = {}  # facts of the boot
        self.metrics: list[Json] = []

    def ready(self, on_progress: Callable[[str], None] = lambda _: None) -> Endpoint:
        """Waits until it serves; raises BackendError with why it does not, MissingError for what this machine lacks."""
        while True:
            try:
                while not select.select([self._connection], [], [], LOOK)[0]:
                    if self._is_suspended():
                        raise BackendError(f"its guardian, {self._suspended}, and the stack did not start; see {GUARDIAN_LOG}")
                message = self._next()
            except (OSError, ValueError) as error:  # ValueError: another thread has closed the connection
                why = "it was stopped while it started" if self._leaving else f"its guardian is gone; see {GUARDIAN_LOG}"
                raise BackendError(why) from error
            match message["op"]:
                case "progress":
                    on_progress(message["text"])
                case "ready":
                    self.boot, self.metrics = message["boot"], message["metrics"]
                    return Endpoint(**message["endpoint"])
                case "failed" | "died" if self._leaving:
                    raise BackendError("it was stopped while it started")
                case "failed" | "died":
                    raise (MissingError if message.get("missing") else BackendError)(message["reason"])

    def death(self, on_restart: Callable[[Json], None] = lambda _: None) -> str:
        """Blocks until it dies; returns what died. Empty when it was stopped or let go by whoever holds this.

        `on_restart` is told which `services` are started again, none when all serve, and how many `restarts` each has had.
        """
        why = f"its guardian is gone; see {GUARDIAN_LOG}"
        with suppress(OSError, ValueError):
            while (message := self._next())["op"] != "died":
                if message["op"] == "restarting":
                    on_restart(message)
            why = message["reason"]
            return "" if self._leaving else str(why)
        self.is_orphaned = not self._leaving
        return "" if self._leaving else why

    def stop(self) -> str:
        """Tears the stack down. Ends a guardian that is suspended, and kills what it, or a guardian that died, has left.

        Returns a sentence about a guardian that was suspended, and an empty text if there was none.
        """
        said = ""
        self._leaving = True
        with suppress(OSError):
            wire.send(self._connection, {"op": "stop"})
        end = time.monotonic() + STOPPED
        while is_alive(str(self.home)) and time.monotonic() < end:
            if not said and self._is_suspended():
                said = f"the guardian of the stack in {self.home}, {self._suspended}, so it was ended by SIGKILL, and its services with it"
                with suppress(ProcessLookupError):
                    os.kill(self._guardian, signal.SIGKILL)
            time.sleep(0.02)
        self.let_go()
        if self._child is not None:
            self._child.stop()
        if not is_alive(str(self.home)):
            reap_one(self.home)
        return said

    def _is_suspended(self) -> bool:
        """Returns whether the guardian has been suspended for SUSPENDED seconds, as far as the calls of this method show."""
        if not self._guardian or not is_suspended(self._guardian):
            self._suspended_since = None
            return False
        now = time.monotonic()
        self._suspended_since = self._suspended_since or now
        return now - self._suspended_since >= SUSPENDED

    @property
    def _suspended(self) -> str:
        return f"process {self._guardian}, was suspended by SIGSTOP for {SUSPENDED:g} s"

    def keep(self, seconds: float) -> None:
        """It stays when it is let go, for so long."""
        with suppress(OSError):
            wire.send(self._connection, {"op": "keep", "seconds": seconds})
        if self._child is not None:
            self._child.leave_alone()

    def let_go(self) -> None:
        self._leaving = True
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)  # a thread that waits in `death` wakes up
        self._connection.close()

    def _next(self) -> Json:
        message: Json = wire.receive(self._connection)[0]
        return message


def start(spec: StackSpec, logs: Path, *, gpu_wait: float, warm_up: int) -> HeldStack:
    """Starts a guardian, which boots the stack; raises BackendError when not even that goes well."""
    home = _new_home(spec.name)
    owned = lock(home)
    config = {
        "spec": spec.model_dump(mode="json"),
        "spec_hash": spec_hash(spec),
        "inherited": inherited(spec),
        "home": str(home),
        "logs": str(logs),
        "gpu_wait": gpu_wait,
        "warm_up": warm_up,
        "lock": owned,
    }
    try:
        child = Child("pytest_agentbench.backends.stack.guardian", config, logs / GUARDIAN_LOG, pass_fds=(owned,))
    finally:
        os.close(owned)
    try:
        child.ready(Serving)
        return _hold(home, child)
    except BackendError:
        child.stop()
        reap_one(home)
        raise


def _new_home(name: str) -> Path:
    """A folder for a stack; raises BackendError when there cannot be one."""
    home = stacks_folder() / f"{re.sub(r'[^A-Za-z0-9_-]', '_', name)[:20]}-{secrets.token_hex(4)}"
    if len(os.fsencode(home / SOCKET)) > LONGEST:
        raise BackendError(
            f"{home / SOCKET} is longer than the {LONGEST} bytes that a socket's path may have; set AGENTBENCH_STACKS=/tmp/s"
        )
    home.mkdir(mode=0o700)
    return home


def find_kept(spec: StackSpec) -> HeldStack | None:
    """A stack of the same spec that inherited the same that is ready, kept, and held by nobody else; None where there is none."""
    now = inherited(spec)
    for home, facts in _kept(spec):
        if facts["inherited"] == now:
            with suppress(BackendError, OSError):
                return _hold(home, alone=True)
    return None


def passed_over(spec: StackSpec) -> str:
    """Why a kept stack of the same spec is not used: a sentence with what has changed since its start; empty where there is none."""
    now = inherited(spec)
    for _, facts in _kept(spec):
        if changed := differences(facts["inherited"], now):
            return f"a kept {spec.name} is not used, since it was started with something else: {'; '.join(changed)}"
    return ""


def _kept(spec: StackSpec) -> Iterator[tuple[Path, Json]]:
    wanted = spec_hash(spec)
    for home, facts in running():
        if facts["spec_hash"] == wanted and facts["state"] == "ready" and facts["keep_s"] is not None:
            yield home, facts


def running() -> Iterator[tuple[Path, Json]]:
    """Folder and facts of every stack of this user that has a guardian."""
    for facts in sorted(stacks_folder().glob(f"*/{FACTS}")):
        if is_alive(str(facts.parent)):
            with suppress(OSError, ValueError):  # it has just ended
                yield facts.parent, json.loads(facts.read_text())


def attach(home: Path) -> HeldStack:
    """Holds a stack beside whoever else does."""
    return _hold(home)


def _hold(home: Path, child: Child | None = None, *, alone: bool = False) -> HeldStack:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(ANSWER)
        connection.connect(str(home / SOCKET))
        wire.send(connection, {"op": "hold", "alone": alone})
        message, _ = wire.receive(connection)
        connection.settimeout(None)
    except OSError as error:
        connection.close()
        raise BackendError(f"the guardian in {home} does not answer: {error}") from error
    if message["op"] == "busy":
        connection.close()
        raise BackendError(f"the stack in {home} is held by another session, or about to end")
    return HeldStack(home, connection, child)


def reap() -> list[tuple[str, list[str]]]:
    """Ends what dead guardians left behind; touches nothing without a mark. Returns (stack's folder, what was ended).

    Marks of stacks in other folders are those of other users, whom root and the Docker Engine see as well.
    """
    marked = {of for _, of in processes()} | {left.stack for left in leftovers(is_alive)}
    homes = {str(home) for home in stacks_folder().iterdir() if home.is_dir()}
    homes |= {home for home in marked if Path(home).parent == stacks_folder()}
    return [(home, reap_one(Path(home))) for home in sorted(homes) if not is_alive(home)]


def reap_orphans() -> str:
    """Ends the stacks whose guardian was killed; what was ended, in one sentence, empty where nothing was.

    A folder without facts is left alone, unlike by `reap`: another session may be about to start a guardian in it.
    """
    ended = []
    for file in sorted(stacks_folder().glob(f"*/{FACTS}")):
        if not is_alive(str(file.parent)):
            with suppress(OSError, ValueError):  # its session has just cleaned up itself
                name = json.loads(file.read_text())["backend"]
                ended.append(f"{name} ({', '.join(reap_one(file.parent)) or 'only its folder'})")
    return f"ended what a guardian that was killed had left of {' and '.join(ended)}" if ended else ""


def reap_one(home: Path) -> list[str]:
    """The same for one stack without a guardian."""
    killed = [f"process {pid}" for pid in kill_marked(str(home))]
    left = leftovers(lambda stack: stack != str(home))
    remove(left)
    shutil.rmtree(home, ignore_errors=True)
    return [*killed, *(f"{each.kind} {each.name}" for each in left)]
