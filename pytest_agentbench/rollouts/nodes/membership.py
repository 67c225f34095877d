"""The membership of a node worker in a session: the processes that it starts for it, and the messages that it forwards."""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_agentbench.backends.backend import Backend
from pytest_agentbench.backends.machine.cpu import CpuWatch
from pytest_agentbench.backends.per_node import NodeBackend
from pytest_agentbench.errors import AgentbenchError, ConfigError, InfraError
from pytest_agentbench.lib import json_text, wire
from pytest_agentbench.lib.connection_security import Trust
from pytest_agentbench.lib.error_texts import cause
from pytest_agentbench.lib.process import SESSION, Child, end_marked, usable_cores
from pytest_agentbench.lib.threads import daemon
from pytest_agentbench.lib.wire import OtherVersion
from pytest_agentbench.records import Endpoint
from pytest_agentbench.rollouts.nodes import suite_files
from pytest_agentbench.rollouts.nodes.connection import PERIOD, SILENCE, NodeConnection, Silence, versions
from pytest_agentbench.rollouts.nodes.protocol import (
    FROM_NODE,
    TO_NODE,
    AttemptEnded,
    Bye,
    GiveLease,
    Join,
    Joined,
    Leaving,
    NodeSample,
    NotAdmitted,
    PointNode,
    RunnerConfig,
    RunnerServes,
    Tick,
    Tock,
    Welcome,
)
from pytest_agentbench.rollouts.parts.pool_and_tap_processes import TapProcesses
from pytest_agentbench.rollouts.protocol import FROM_PIPE, BlockedBy, PoolSettings, ShowUser
from pytest_agentbench.runs.journal import record_line
from pytest_agentbench.sandbox.containers import end_run
from pytest_agentbench.tap.protocol import TapPorts

OVER, LOST, REFUSED = 0, 3, 4  # exit statuses: the session is over; it is gone, or this node worker was asked to end; it was not admitted
SANDBOXES = 3.0  # seconds for removing the sandboxes that a runner has left
GRACE = 0.5  # seconds that processes get to end by themselves, before they are killed

RUNNER = "runner"

Say = Callable[[str], None]


@dataclass(frozen=True)
class JoinTerms:
    """What a node worker was told on its command line."""

    host: str
    port: int
    token: str = field(repr=False)
    node: str  # name of this machine, for reports
    slots: int  # maximum number of attempts at the same time
    patience_s: float  # seconds in which a session has to answer, at the start and after the connection was lost
    folder: Path  # gets a folder for each time that this node worker joins, with logs and the files of the suites
    trust: Trust | None = None  # how the session's certificate is checked; None: no TLS

    @property
    def at(self) -> str:
        """Where the session listens, as in messages."""
        return f"{self.host}:{self.port}"


class Membership:
    """The time from `Join` to the end of one connection to a session. `run` returns when all processes of it have ended."""

    def __init__(self, terms: JoinTerms, instance: str, connection: NodeConnection, say: Say) -> None:
        self._terms, self._instance, self._connection, self._say = terms, instance, connection, say
        self.status: int | None = None  # exit status of the node worker; None if it should join again
        self.was_answered = False  # whether the session has sent anything
        self.problem = f"{terms.at} has not admitted this node worker"  # why the session cannot use it; empty if it can
        self._silence = Silence(SILENCE)
        self._over = threading.Event()
        self._leases: dict[tuple[str, str, str, int], int] = {}  # rollout -> its lease
        self._mark = secrets.token_hex(16)
        self._run = ""  # label of the sandboxes
        self._has_sandboxes = False  # whether sandboxes of the runner may be left
        self._cpu = CpuWatch()
        self._sent_samples: dict[str, int] = {}
        self._taps: TapProcesses | None = None
        self._runner: Child | None = None
        self._backend: Backend | None = None  # the backend of this machine, with `placement: per-node`
        self._line: socket.socket | None = None  # socket to the runner
        self._suites: Path | None = None  # folder with the files of the suites
        self._starting: threading.Thread | None = None
        self._forwarding: threading.Thread | None = None

    def run(self) -> None:
        """Joins, and forwards messages until the connection ends or a process has died. Then ends all processes."""
        try:
            self._connection.send(self._join())
            daemon(self._watch_silence, name="silence")
            while True:
                header, body = self._connection.receive()
                self._silence.end()
                self.was_answered = True
                self._handle(header, body)
        except OtherVersion as error:
            self._say(str(error))
            self.status = REFUSED
        except (OSError, ValueError) as error:
            if not self._over.is_set():
                self._say(f"the connection to the session was lost: {error or type(error).__name__}")
        finally:
            self._over.set()
            self._stop()

    def end(self, reason: str) -> None:
        """Gives the leases back, because the node worker ends or one of its processes has died."""
        if not self._over.is_set():
            self._over.set()
            with suppress(OSError):
                self._connection.send(Leaving(reason))
            self._connection.close()

    def _join(self) -> Join:
        package, python = versions()
        return Join(self._terms.node, self._instance, os.getpid(), self._terms.slots, usable_cores(), os.nice(0), package, python)

    def _handle(self, header: list[object], body: bytes) -> None:
        match header[0]:
            case "Tick" | "Welcome" | "Bye" | "NotAdmitted" | "Refused":
                pass
            case "GiveLease":
                message = TO_NODE.read(header)
                assert isinstance(message, GiveLease)
                self._leases[message.key] = message.lease
                self._to_runner(header, body)
                return
            case "PointNode":
                message = TO_NODE.read(header)
                assert isinstance(message, PointNode)
                self._has_sandboxes = self._has_sandboxes or bool(message.images)
                self._to_runner(header, body)
                return
            case _:
                self._to_runner(header, body)
                return
        match TO_NODE.read(header):
            case Tick(pool_ns):
                self._connection.send(Tock(pool_ns, time.monotonic_ns()))
            case Welcome() as welcome:
                self.problem, self._silence.limit = "", welcome.silence_s
                self._starting = daemon(self._start, welcome, body, name="start")
            case Bye(reason):
                self._say(reason)
                self.status = OVER
                self._leave_quietly()
            case NotAdmitted(reason, again):
                self._say(f"the session does not admit this node worker: {reason}")
                self.problem, self.status = reason, None if again else REFUSED
                self._over.set()
                raise ConnectionError(reason)

    def _leave_quietly(self) -> None:
        """Ends the runner first, because it tells the stack which rollouts have ended, and the session counts that."""
        self._over.set()
        self._stop()
        raise ConnectionError("the session is over")

    def _to_runner(self, header: object, body: bytes) -> None:
        if self._line is not None:
            with suppress(OSError):  # The runner has died, which `_watch` reports.
                self._line.sendall(wire.framed(header, body))

    def _start(self, welcome: Welcome, body: bytes) -> None:
        """Starts tap and runner. Runs in its own thread, because the session expects answers meanwhile."""
        try:
            logs = _new_folder(self._terms.folder, welcome.name)
            self._suites = folder = logs / suite_files.SUITES
            folder.mkdir()
            suite_files.unpack(body, folder)
            at_node = suite_files.at_node(welcome.settings, folder, welcome.sandboxes)
            settings = replace(at_node, run=f"{at_node.run}-{welcome.name}")  # Node workers on one engine tell their sandboxes apart.
            self._run = settings.run
            if problem := suite_files.code_problem(settings, folder, self._terms.node):
                self.status = REFUSED
                self._say(problem)
                self.end(problem)
                return
            endpoint = None if welcome.backend is None else self._start_backend(welcome.backend, logs)
            self._taps = TapProcesses(welcome.taps, welcome.budgets, logs)
            self._taps.ready()
            self._line, self._runner = self._start_runner(settings, self._taps.facts, endpoint, logs)
            self._runner.ready(RunnerServes)
        except Exception as error:
            self.problem = f"its processes could not be started: {error if isinstance(error, AgentbenchError) else cause(error)}"
            self._say(self.problem)
            self.end(self.problem)
            return
        self._forwarding = daemon(self._forward, self._line, name="forward")
        children = {RUNNER: self._runner, **self._taps.children}
        for name, child in children.items():
            daemon(self._watch, name, child, name=f"watch-{name}")
        self._cpu.start(children)
        with suppress(OSError):
            self._connection.send(Joined())
        self._say(f"joined the session as {welcome.name}, {self._terms.slots} slots, logs in {logs}")

    def _start_runner(self, settings: PoolSettings, taps: TapPorts, endpoint: Endpoint | None, logs: Path) -> tuple[socket.socket, Child]:
        """Starts the runner. Returns the socket to it and its process. A thread reads what it writes while its event loop is blocked."""
        line, theirs = socket.socketpair()
        pipe, their_pipe = os.pipe()
        with theirs:
            try:
                secret = secrets.token_urlsafe(16)
                config = RunnerConfig(theirs.fileno(), their_pipe, self._terms.node, logs, settings, taps, endpoint, secret=secret)
                module, inherited = "pytest_agentbench.rollouts.nodes.runner", (theirs.fileno(), their_pipe)
                runner = Child(module, config, logs / "runner.log", pass_fds=inherited, variables={SESSION: self._mark})
            finally:
                os.close(their_pipe)
        daemon(self._read_pipe, pipe, name="runner-pipe")
        return line, runner

    def _start_backend(self, terms: NodeBackend, logs: Path) -> Endpoint:
        """Boots the backend of this machine, and ends the membership when it dies. Raises ConfigError if it cannot be the session's."""
        try:
            self._backend = backend = terms.make(Path.cwd(), self._terms.node)
        except ConfigError:
            self.status = REFUSED
            raise
        self._say(f"booting the backend {backend.name!r}")
        endpoint = backend.start(logs)
        daemon(self._watch_backend, backend, name="watch-backend")
        return endpoint

    def _watch_backend(self, backend: Backend) -> None:
        if died := backend.watch(lambda _: False):
            self._say(died)
            self.end(f"its backend died: {died.partition(chr(10))[0]}")

    def _watch(self, name: str, child: Child) -> None:
        child.process.wait()
        if self._over.is_set():
            return
        message = child.exit_message("died")
        self._say(message)
        if name == RUNNER and self._forwarding is not None:
            self._forwarding.join(GRACE)  # Its last messages come first.
        self.end(message.partition("; the end of ")[0])  # without lines of its log

    def _watch_silence(self) -> None:
        while not self._over.wait(PERIOD):
            if self._silence.is_too_long():
                self._say(f"nothing has come from the session for {self._silence.seconds:.0f} s")
                self._over.set()
                self._connection.close()

    def _forward(self, line: socket.socket) -> None:
        """Forwards the messages of the runner to the session, and adds the CPU use to its samples."""
        with suppress(OSError):
            while True:
                header, body = wire.receive(line)
                if header[0] == "NodeSample":
                    sample = FROM_NODE.read(header)
                    assert isinstance(sample, NodeSample)
                    self._connection.send(NodeSample(sample.lag_ms, self._new_samples()))
                else:
                    self._connection.send_frame(header, body)

    def _new_samples(self) -> dict[str, tuple[tuple[int, int, float], ...]]:
        new = {}
        for name, samples in [*self._cpu.samples.items()]:
            begin = self._sent_samples.get(name, 0)
            self._sent_samples[name] = len(samples)
            new[name] = tuple(samples[begin:])
        return new

    def _read_pipe(self, pipe: int) -> None:
        """Reads what the runner writes while its event loop is blocked, such as the record of the rollout that blocks it."""
        with os.fdopen(pipe, "rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    return
                with suppress(OSError, ValueError):
                    match FROM_PIPE.read(json_text.loads(line)):
                        case ShowUser() as sentence:
                            self._connection.send(sentence)
                        case BlockedBy(rollout) if (lease := self._leases.get(rollout.key)) is not None:
                            ended = AttemptEnded(lease, time.monotonic_ns(), interrupted=False)
                            self._connection.send(ended, record_line(rollout))

    def _stop(self) -> None:
        """Ends all processes. Does nothing if they have ended already."""
        if self._starting is not None:
            if self._starting.is_alive() and self._backend is not None:
                self._backend.stop()  # It may be booting for minutes.
            self._starting.join()
        self._starting = None
        runner, taps = self._runner, self._taps
        self._runner = self._taps = None
        children = [*([runner] if runner else []), *(taps.stop() if taps else [])]
        stopping = [daemon(child.stop, GRACE, name="stop") for child in children[:1]]
        for thread in stopping:
            thread.join()
        for thread in [daemon(child.stop, GRACE, name="stop") for child in children[1:]]:
            thread.join()
        self._cpu.stop()
        if self._suites is not None:
            shutil.rmtree(self._suites, ignore_errors=True)
        if self._backend is not None:
            self._backend.stop()
        if self._line is not None:
            self._line.close()
        if self._has_sandboxes:
            daemon(self._remove_sandboxes, name="sandboxes").join(SANDBOXES)
        leftovers = end_marked(SESSION, self._mark)
        with suppress(OSError):
            if self.status == OVER:
                self._connection.send(Leaving("the session is over", leftovers))
        self._connection.close()

    def _remove_sandboxes(self) -> None:
        with suppress(InfraError):  # They end by themselves, and the next session on this machine removes those that are left.
            end_run(self._run)


def _new_folder(parent: Path, name: str) -> Path:
    """Makes a folder that was not there: an earlier session may have left one with this name."""
    for number in itertools.count(1):
        folder = parent / (name if number == 1 else f"{name}.{number}")
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
    raise AssertionError
