"""Node workers for tests: real ones, scripted ones that speak the protocol as a test wants, and a relay that can be stopped."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_agentbench.lib import codec
from pytest_agentbench.lib.threads import daemon
from pytest_agentbench.records import Rollout, RolloutKey
from pytest_agentbench.rollouts.nodes.connection import NodeConnection, versions
from pytest_agentbench.rollouts.nodes.protocol import (
    TO_NODE,
    AttemptEnded,
    AttemptStarted,
    GiveLease,
    Join,
    Joined,
    NodePointed,
    PointNode,
    Tick,
    Tock,
    ToNode,
    Welcome,
)
from pytest_agentbench.runs.journal import record_line
from tests.project import Project
from tests.robustness.processes import Background
from tests.waits import wait_for

WORKER = "pytest_agentbench.cli"
RUNNER = "pytest_agentbench.rollouts.nodes.runner"
TAP = "pytest_agentbench.tap"
POOL = "pytest_agentbench.rollouts.pool"

#: Fields of a record that differ between two sessions: attempts, the node, and what the server had in its cache from an earlier attempt.
CHANGING = {"session", "attempt", "earlier_attempts", "node", "log", "conversation", "cached_tokens"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def lasting(rollouts: list[Rollout]) -> dict[str, Any]:
    """Returns what has to be equal in the records of two sessions: everything but times, attempts and random ids."""
    return {str(rollout.key): _without_times(codec.plain(rollout)) for rollout in rollouts}


def _without_times(value: Any) -> Any:
    match value:
        case dict():
            names = (name for name in value if name not in CHANGING and not name.endswith(("_ns", "_at", "_ms", "_s", "_id", "crc")))
            return {name: _without_times(value[name]) for name in names if name not in ("chunks", "kept", "server", "stamp")}
        case list() | tuple():
            return [_without_times(each) for each in value]
    return value


class NodeWorker:
    """`agentbench worker` in another process."""

    def __init__(self, project: Project, port: int, token: Path, *options: str, name: str = "n1", **variables: str) -> None:
        self.log = project.root / f"worker-{name}.txt"
        command = [sys.executable, "-m", WORKER, "worker", "--join", f"127.0.0.1:{port}", "--token-file", str(token), "--node", name]
        if "--logs" not in options:
            options += ("--logs", str(project.root / f"worker-{name}"))
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(project.root), **variables}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([*command, *options], stdout=log, stderr=log, env=environment, start_new_session=True)

    @property
    def output(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def ended(self, seconds: float = 30) -> int:
        """Waits until it has ended. Returns its exit status."""
        return self.process.wait(seconds)

    def clean_up(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait(10)


def token_of(background: Background) -> Path:
    """Waits for the file with the token of a session for node workers."""
    token: list[Path] = []

    def is_there() -> bool:
        assert background.process.poll() is None, background.output
        token[:] = [path for path in background.root.glob("reports/2*/nodes.token") if path.read_text().endswith("\n")]
        return bool(token)

    wait_for(is_there, "the token's file")
    return token[0]


class ScriptedNode:
    """A node worker in this process that makes no attempts: a test decides what it sends."""

    def __init__(self, port: int, token: str, *, name: str = "scripted", joined: bool = True, **fields: Any) -> None:
        package, python = versions()
        self.join = replace(Join(name, f"instance-{name}", 1, 2, 2, 0, package, python), **fields)
        self.connection = NodeConnection.connect("127.0.0.1", port, token)
        self.connection.send(self.join)
        self.received: list[ToNode] = []
        self.pointed = ""  # why this node cannot call the backend; empty if it can
        if joined:
            assert isinstance(self.next(), Welcome)
            self.connection.send(Joined())

    def next(self) -> ToNode:
        """Returns the next message that is not a `Tick`. Answers ticks and `PointNode`. Raises ConnectionError at the end."""
        while True:
            message = self._read()
            if not isinstance(message, Tick | PointNode):
                self.received.append(message)
                return message

    def point(self) -> None:
        """Waits for a `PointNode`, and answers it."""
        while not isinstance(self._read(), PointNode):
            pass

    def _read(self) -> ToNode:
        """Reads a message, and answers it if it is a `Tick` or `PointNode`."""
        message = TO_NODE.read(self.connection.receive()[0])
        match message:
            case Tick(pool_ns):
                self.connection.send(Tock(pool_ns, time.monotonic_ns()))
            case PointNode(number):
                self.connection.send(NodePointed(number, None if self.pointed else 0.1, self.pointed))
        return message

    def lease(self) -> GiveLease:
        """Waits for a lease."""
        message = self.next()
        assert isinstance(message, GiveLease), message
        return message

    def start(self, lease: GiveLease) -> None:
        self.connection.send(AttemptStarted(lease.lease, time.monotonic_ns()))

    def end(self, number: int, key: RolloutKey, status: str = "ok", reason: str = "", *, interrupted: bool = False) -> None:
        """Sends a record for a lease."""
        rollout = Rollout(*key, status=status, reason=reason, started_ns=1, ended_ns=2, answer="scripted")
        self.connection.send(AttemptEnded(number, time.monotonic_ns(), interrupted), record_line(rollout))

    def close(self) -> None:
        self.connection.close()

    def is_closed(self) -> bool:
        """Waits until the session closes the connection."""
        with suppress(ConnectionError):
            while True:
                self.next()
        return True


class Relay:
    """Forwards TCP connections to a port, until it is stopped: then it forwards nothing, as a network that is cut, and closes nothing."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listener]
        self.port = int(self._listener.getsockname()[1])
        self._flows = threading.Event()
        self._flows.set()
        self._threads = [daemon(self._accept, name="relay")]

    def stop(self) -> None:
        self._flows.clear()

    def resume(self) -> None:
        self._flows.set()

    def close(self) -> None:
        self._flows.set()
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._sockets.append(near)
                self._flows.wait()
                far = socket.create_connection(("127.0.0.1", self._target))
                self._sockets.append(far)
                self._threads += [daemon(self._copy, *pair, name="relay") for pair in ((near, far), (far, near))]
        self._listener.close()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self._flows.wait()
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)
