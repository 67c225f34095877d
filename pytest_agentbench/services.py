"""The processes of one session as its controller holds them: backend, tap and pool, and the line to the pool."""

from __future__ import annotations

import functools
import secrets
import socket
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Concatenate, ParamSpec, Protocol

from pytest_agentbench import wire
from pytest_agentbench.errors import AgentbenchError, MissingError
from pytest_agentbench.losses import cause
from pytest_agentbench.records import Endpoint, Json, RolloutKey
from pytest_agentbench.redact import Redactor
from pytest_agentbench.serving.arms import Arms, failures_of
from pytest_agentbench.serving.backend import Backend
from pytest_agentbench.serving.cpu import CpuWatch
from pytest_agentbench.serving.process import Child
from pytest_agentbench.serving.sampler import Sampler
from pytest_agentbench.serving.samples import FILE as SAMPLES
from pytest_agentbench.turns import Turns

DRAIN = 10.0  # seconds that running rollouts get to end when the session does
SETTLE = 1.0  # seconds that a backend which was still booting gets to notice that it was stopped

P = ParamSpec("P")


class Desk(Protocol):
    """What the controller does with what the pool reports. Called in a thread."""

    wanted: threading.Event  # a test that needs the backend is known
    in_journal: int  # rollouts of this session
    path: Path  # of the journal

    def planned(self, keys: int, stored: int, selected: dict[str, int]) -> None: ...

    def begun(self) -> None:
        """The backend is ready: rollouts run from now on."""

    def finished(self, summary: Json, line: bytes) -> bytes:
        """Journals a rollout; returns the line as it was written."""

    def recorded(self, key: RolloutKey) -> bytes: ...


def _refuses_waiting(work: Callable[Concatenate[Services, P], None]) -> Callable[Concatenate[Services, P], None]:
    """Of a method that is a thread's work: should it fail (no memory, say), others are told instead of waiting for it."""

    @functools.wraps(work)
    def watched(services: Services, /, *arguments: P.args, **named: P.kwargs) -> None:
        try:
            work(services, *arguments, **named)
        except BaseException as error:
            services.break_down(error)

    return watched


class Services:
    """Starts everything in the background; tests reach the pool on `port` from the first moment on."""

    def __init__(
        self,
        backend: Backend,
        directory: Path,
        pool_config: Json,
        tap_config: Json,
        desk: Desk,
        redactor: Redactor,
        turns: Turns | None = None,
        *,
        insists: bool,
    ) -> None:
        """`directory` is for logs and samples.

        `tap_config` holds `processes` and `budgets`, seconds by name; `insists`: a backend that lacks something is an error, no skip.
        """
        self.backend, self.directory, self.pool_config, self.tap_config, self.desk = backend, directory, pool_config, tap_config, desk
        self.insists, self.turns = insists, turns
        self._redactor = redactor
        self.token = secrets.token_urlsafe(16)
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port: int = self.listener.getsockname()[1]
        self.endpoint: Endpoint | None = None
        self.labels: Json | None = None  # how many rollouts were announced and released, known when the session ends
        self.unrecorded: int | None = None  # LLM calls that are in no record, known when the session ends in order
        self.costs: Json = {}  # process -> CPU seconds and peak memory, known when the session ends
        self.cpu = CpuWatch()  # of tap and pool, second by second
        self.sampler: Sampler | None = None  # from when the backend is up; None where it tells nothing
        self.missing = False  # whether the backend did not start for something that this machine lacks
        self.failure = ""  # why nothing can run any more: the backend did not start or died, the tap or the pool died
        self.boot_began = 0.0  # seconds, time.monotonic()
        self._taps: dict[str, Child] = {}  # by the names of their logs
        self._pool: Child | None = None
        self._line: socket.socket | None = None
        self._sending = threading.Lock()
        self._connected = threading.Event()  # the pool can be told, or never will
        self._drained = threading.Event()
        self._told = {"drained": self._drained, "want": desk.wanted}  # what the pool says without waiting for a reply
        self._finishing = False
        self._boot = _thread(self._start, "agentbench-boot")

    @property
    def boot_status(self) -> str:
        """What the backend's boot waits for; empty when it does not boot, or is quick."""
        return "" if self.endpoint or self.failure else self.backend.status

    def fail(self, reason: str) -> None:
        """Nothing can run any more: every test that waits is told why. The first reason counts."""
        if self._finishing:
            return
        self.failure = self.failure or f"{self._redactor.plain(reason)}{self._saved()}"
        if not self._send({"op": "failed", "reason": self.failure, "status": "missing" if self.missing else "infra_error"}):
            self._abandon()

    def _saved(self) -> str:
        """What is not lost, to be put behind a reason."""
        count = self.desk.in_journal
        return f"\n{count} finished rollout{'s are' if count > 1 else ' is'} saved in {self.desk.path}" if count else ""

    def cancel(self, reason: str) -> None:
        """Ends all rollouts, and answers every test that waits."""
        self._send({"op": "cancel", "reason": reason})

    def hurry(self) -> None:
        """Nobody waits any more for what runs to end: the pool is killed, and `finish` goes on without it."""
        self._finishing = True
        self._abandon()

    def finish(self) -> None:
        """Ends what runs and stops all processes; after it everything that finished is in the journal."""
        self._connected.wait(DRAIN)
        if self._send({"op": "finish"}):
            self._drained.wait(DRAIN)
        self._finishing = True
        self.desk.wanted.set()  # a boot that nobody wanted ends here
        if self.turns is not None:
            self.turns.close()
        self.failure = self.failure or self._redactor.plain("; ".join(failures_of(self.backend).values()))
        if self.sampler is not None:
            self.sampler.stop()
        self.cpu.stop()
        self.costs = self._costs()
        if self._line is not None:
            self._line.close()
        stopping = [_thread(child.stop, "agentbench-stop") for child in (self._pool, *self._taps.values()) if child is not None]
        self.backend.stop()
        for thread in stopping:
            thread.join()
        self._boot.join(SETTLE)

    def _costs(self) -> Json:
        children = {"pool": self._pool, **self._taps, "engine": getattr(self.backend, "child", None)}
        return {name: cost for name, child in children.items() if child is not None and (cost := child.cost())}

    @_refuses_waiting
    def _start(self) -> None:
        """Boots all at once; whatever goes wrong, the tests are told."""
        try:
            booting = _thread(self._start_backend, "agentbench-backend")
            taps = self._start_taps_and_pool()
            booting.join()
        except Exception as error:
            self.fail(f"agentbench cannot run rollouts: {error if isinstance(error, AgentbenchError) else repr(error)}")
            if not self._connected.is_set():  # the pool cannot be heard, and would wait for answers for ever
                self._abandon()
            return
        if self.endpoint is None:
            self.fail(self.failure)
            return
        self.desk.begun()
        if isinstance(self.backend, Arms):
            self.backend.on_gone = self._gone
        self._send({"op": "start", "endpoint": asdict(self.endpoint), "taps": taps})
        _thread(self._watch_backend, "agentbench-watch-backend")
        for tap in self._taps.values():
            _thread(functools.partial(self._watch_tap, tap), "agentbench-watch-tap")

    def _start_taps_and_pool(self) -> Json:
        """Where the taps serve. From here on the pool alone has the listening socket, so that its death is seen by all who wait on it."""
        logs, token = self.directory / "backend", secrets.token_urlsafe(16)
        with _reserved() as reserved:
            tap_config = {"token": token, "port": reserved.getsockname()[1], "budgets": self.tap_config["budgets"]}
            for name in _tap_names(self.tap_config["processes"]):
                self._taps[name] = Child("pytest_agentbench.tap", tap_config, logs / f"{name}.log")
            with self.listener:
                config = {**self.pool_config, "token": self.token, "listener": self.listener.fileno()}
                self._pool = Child("pytest_agentbench.pool", config, logs / "pool.log", pass_fds=(self.listener.fileno(),))
                self._line = wire.connect(self.port, self.token, "controller")
            self.cpu.start({**self._taps, "pool": self._pool})
            _thread(self._listen, "agentbench-pool")
            self._connected.set()
            ports = [tap.ready() for tap in self._taps.values()]
        return {"port": ports[0]["port"], "control_ports": [each["control_port"] for each in ports], "token": token}

    def _start_backend(self) -> None:
        logs = self.directory / "backend"
        logs.mkdir(exist_ok=True)
        try:
            if self.backend.waits:
                self.desk.wanted.wait()
            if not self._finishing:
                self.boot_began = time.monotonic()
                endpoint = self.backend.start(logs)
                self._start_sampler()
                self.endpoint = endpoint
        except Exception as error:  # a backend may come from a hook
            if self._finishing:
                return  # it was stopped while it started
            fault = f"is not there: {error}" if isinstance(error, AgentbenchError) else f"failed to start: {error!r}"
            self.failure = self.failure or self._redactor.plain(f"the backend {self.backend.name!r} {fault}")
            self.missing = isinstance(error, MissingError) and not self.insists

    def _start_sampler(self) -> None:
        sources = self.backend.metrics()
        if (sources.targets or sources.gpus) and not self._finishing:
            self.sampler = Sampler(sources, self.directory / SAMPLES)
            self.sampler.start()

    @_refuses_waiting
    def _watch_backend(self) -> None:
        if died := self.backend.watch(self._hold_back):
            self.fail(f"the backend {self.backend.name!r} is gone: {died}")

    def _hold_back(self, why: str) -> None:
        """A part of the backend is away; with an empty text it is there again."""
        self._send({"op": "hold", "why": why})

    def _gone(self, arm: str, why: str) -> None:
        self._send({"op": "gone", "arm": arm, "reason": self._redactor.plain(why)})

    @_refuses_waiting
    def _turn(self, arm: str, rollouts: int) -> None:
        """Makes an arm ready for its next rollouts, and tells the pool."""
        assert self.turns is not None and self.endpoint is not None
        try:
            answer, swapped = self.turns.begin(self.endpoint, arm, rollouts)
        except Exception as error:  # a backend may come from a hook
            answer, swapped = {"op": "turn", "failure": f"arm {arm} cannot run: {error!r}"}, False
        if swapped and self.sampler is not None:
            self.sampler.stop()
            self._start_sampler()
        self._send({**answer, "failure": self._redactor.plain(answer["failure"])})

    @_refuses_waiting
    def _watch_tap(self, tap: Child) -> None:
        tap.process.wait()
        if not self._finishing:
            self.fail(f"the tap is gone: {tap.obituary('died in the middle of the run')}")

    @_refuses_waiting
    def _listen(self) -> None:
        """Answers the pool until it closes the line."""
        assert self._line is not None
        try:
            while True:
                message, body = wire.receive(self._line)
                self._handle(message, body)
        except (OSError, ValueError):
            if not self._drained.is_set() and not self._finishing:
                assert self._pool is not None
                gone = f"the pool is gone: {self._pool.obituary('died in the middle of the run')}"
                self.failure = self.failure or f"{gone}{self._saved()}"
                self._abandon()

    def _handle(self, message: Json, body: bytes) -> None:
        if message["op"] == "turn":  # an arm may take minutes to load, and tests ask for records meanwhile
            _thread(functools.partial(self._turn, message["arm"], message["rollouts"]), "agentbench-turn")
            return
        if message["op"] == "gone":
            self.fail(f"the backend {self.backend.name!r} is gone: {message['reason']}")
            return
        if message["op"] in self._told:
            self.labels = message.get("labels", self.labels)
            self.unrecorded = message.get("unrecorded", self.unrecorded)
            self._told[message["op"]].set()
            return
        try:
            reply, error = self._reply(message, body), ""
        except Exception as fault:  # the disk, or a hook of the user's: it must reach the test that waits
            place = traceback.extract_tb(fault.__traceback__)[-1]
            reply, error = b"", f"{fault!r} ({Path(place.filename).name}:{place.lineno})"
        self._send({"op": "reply", "error": error}, reply)

    def _reply(self, message: Json, body: bytes) -> bytes:
        """What the pool gets for a question."""
        match message.pop("op"):
            case "plan":
                self.desk.planned(**message)
                return b""
            case "finished":
                return self.desk.finished(message, body)
            case "measure" if self.turns:
                self.turns.measure(message["primed"])
                return b""
            case "measured" if self.turns:
                self.turns.close()
                return b""
            case "fetch":
                return self.desk.recorded(RolloutKey(*message["key"]))
            case other:
                raise ValueError(f"the pool asked {other!r}")

    def _send(self, message: Json, body: bytes = b"") -> bool:
        """Whether the pool could be told; one that died is noticed by the listening thread."""
        with self._sending:
            try:
                if self._line is None:
                    return False
                wire.send(self._line, message, body)
            except OSError:
                return False
            return True

    def _abandon(self) -> None:
        """There is no pool that can be told: whoever waits for it shall be refused instead."""
        self._connected.set()
        self._drained.set()
        self.listener.close()  # where no pool has got it, those who wait on it would wait for ever
        if self._pool is not None:
            self._pool.process.kill()

    def break_down(self, error: BaseException) -> None:
        """One of our own threads has ended with an error: whoever waits for what it did would wait for ever."""
        try:
            self.failure = self.failure or f"agentbench cannot run rollouts: {cause(error)}{self._saved()}"
        finally:
            self._abandon()


def _tap_names(count: int) -> list[str]:
    """tap, tap-2, tap-3, ..."""
    return ["tap", *(f"tap-{number}" for number in range(2, count + 1))]


def _reserved() -> socket.socket:
    """A port of loopback that several taps can listen on, ours until the socket is closed."""
    sock = socket.socket()
    if hasattr(socket, "SO_REUSEPORT"):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(("127.0.0.1", 0))
    return sock


def _thread(target: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread
