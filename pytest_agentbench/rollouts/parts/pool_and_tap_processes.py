"""The controller's handles of the pool process and the tap processes, and which parts are unavailable and may be restarted."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_agentbench.backends.machine.ports import shared_port
from pytest_agentbench.lib import json_text, wire
from pytest_agentbench.lib.error_texts import cause
from pytest_agentbench.lib.process import SESSION, Child, start_again
from pytest_agentbench.lib.threads import daemon
from pytest_agentbench.lib.wire import OtherVersion
from pytest_agentbench.records import Rollout, RolloutKey
from pytest_agentbench.rollouts.protocol import (
    FROM_PIPE,
    TO_CONTROLLER,
    BlockedBy,
    HoldAttempts,
    PoolConfig,
    ShowUser,
    ToController,
    ToPool,
)
from pytest_agentbench.runs.attempts import AttemptEntry, EndRollout, PoolDied, RunAlone
from pytest_agentbench.tap.clock import enable_timestamps
from pytest_agentbench.tap.protocol import Budgets, TapConfig, TapListening, TapPorts

OnMessage = Callable[["PoolProcess", ToController, bytes], None]

HELD_OPEN = 1.0  # seconds to wait for the end of a pipe that a process left behind by an agent keeps open


class PoolProcess:
    """The controller's handle of a pool process. The constructor starts the process; `begin` starts threads that read its messages."""

    def __init__(
        self, config: Callable[[int], PoolConfig], listener: socket.socket, log: Path, mark: str, inherited: tuple[int, ...] = ()
    ) -> None:
        """Starts the process.

        Args:
            config: A function that returns the configuration. Its argument is the descriptor of a pipe, to which the pool writes while its
                event loop is blocked.
            listener: The socket on which the pool serves. It stays open here for the next pool.
            log: Log file of the process.
            mark: Value of an environment variable that identifies all processes that agents start.
            inherited: Further file descriptors that the pool gets.
        """
        self._pipe, theirs = os.pipe()
        try:
            settings, passed = config(theirs), (listener.fileno(), theirs, *inherited)
            self.child = Child("pytest_agentbench.rollouts.pool", settings, log, pass_fds=passed, variables={SESSION: mark})
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(theirs)
        self.blocked_rollout: Rollout | None = None  # record of the rollout that blocked the loop, if the pool ended itself because of it
        self.fault = ""  # why the controller has ended the pool; empty if it has not
        self._line = wire.connect(listener.getsockname()[1], settings.token, "controller")
        self._sending = threading.Lock()

    def begin(self, on_message: OnMessage, on_death: Callable[[PoolProcess, bool], None]) -> None:
        """Starts to read messages and to wait for the end of the process.

        Args:
            on_message: Called with each message of the pool.
            on_death: Called after the process has ended and all its messages are read. Its argument tells whether the pool ever served.
        """
        listening = daemon(self._listen, on_message, name="pool")
        self._reading = daemon(self._read_pipe, on_message, name="pool-pipe")
        daemon(self._watch, listening, on_death, name="watch-pool")

    def send(self, message: ToPool, body: bytes = b"") -> bool:
        """Sends a message to the pool. Returns False if the connection is broken."""
        with self._sending:
            try:
                wire.send(self._line, message, body)
            except OSError:
                return False
            return True

    def exit_message(self, why: str) -> str:
        """Returns a message about the dead process: `why`, exit code, end of its log, and the reason if the controller has killed it."""
        return self.child.exit_message(f"{why}: {self.fault}", by_us=True) if self.fault else self.child.exit_message(why)

    def close(self) -> None:
        """Closes the connection to the pool, which also ends the thread that reads its messages."""
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)  # This wakes up the reading thread, unlike `close`.

    def _listen(self, on_message: OnMessage) -> None:
        try:
            while True:
                header, body = wire.receive(self._line)
                on_message(self, TO_CONTROLLER.read(header), body)
        except BaseException as error:
            if isinstance(error, OSError) and not isinstance(error, OtherVersion):
                return  # The pool has died or is about to.
            self.fault = f"the controller failed on a message of the pool and killed it: {cause(error)}"
            self.child.process.kill()  # It would wait for an answer for ever. The next pool gets a new connection.
            raise

    def _watch(self, listening: threading.Thread, on_death: Callable[[PoolProcess, bool], None]) -> None:
        assert self.child.process.stdout is not None
        has_served = bool(self.child.process.stdout.readline())
        self.child.process.wait()
        if not has_served:
            self.close()  # The pool never accepted the connection.
        listening.join()
        self._reading.join(HELD_OPEN)
        on_death(self, has_served)
        self._line.close()
        self.child.close_pipes()

    def _read_pipe(self, on_message: OnMessage) -> None:
        """Reads the pipe to which the pool writes while its event loop is blocked, until the pipe closes."""
        with os.fdopen(self._pipe, "rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):  # The pool died while it wrote the line.
                    return
                try:
                    message = FROM_PIPE.read(json_text.loads(line))
                except ValueError as error:
                    message = ShowUser(f"a message that the pool wrote while its event loop was blocked cannot be read: {error}")
                match message:
                    case ShowUser():
                        on_message(self, message, b"")
                    case BlockedBy(rollout):
                        self.blocked_rollout = rollout


class TapProcesses:
    """The controller's handle of the tap processes of one session. The constructor starts them, and `ready` waits until they serve.

    The port for agents is reserved until `stop`, so a tap that replaces a dead one listens there again. Control ports change.
    """

    def __init__(self, processes: int, budgets: Budgets, logs: Path) -> None:
        self._reserved = shared_port()
        enable_timestamps(self._reserved)  # The kernel then continues to take timestamps while a tap is restarted.
        self._config = TapConfig(secrets.token_urlsafe(16), budgets, self._reserved.getsockname()[1])
        self._logs = logs
        self.children = {name: self._start(name) for name in _names(processes)}
        self._ports: dict[str, TapListening] = {}
        self._starting = threading.Lock()
        self._ended = False

    def ready(self) -> None:
        """Waits until all taps serve. Raises BackendError if one does not."""
        for name, child in self.children.items():
            self._ports[name] = child.ready(TapListening)

    @property
    def facts(self) -> TapPorts:
        """The ports of the taps, and the token with which the pool connects to them."""
        return TapPorts(self._config.port, tuple(each.control_port for each in self._ports.values()), self._config.token)

    def start_again(self, name: str) -> bool:
        """Starts a tap in place of a dead one. Returns False if the session ends. Raises BackendError if the new tap does not serve."""

        def start() -> Child | None:
            with self._starting:
                if self._ended:
                    return None
                child = self.children[name] = self._start(name)
                return child

        if (facts := start_again(start, TapListening)) is None:
            return False
        self._ports[name] = facts
        return True

    def end(self) -> None:
        """Prevents further restarts of taps."""
        with self._starting:
            self._ended = True

    def stop(self) -> list[Child]:
        """Prevents restarts, releases the port, and returns the tap processes, which the caller has to stop."""
        self.end()
        self._reserved.close()
        return [*self.children.values()]

    def _start(self, name: str) -> Child:
        return Child("pytest_agentbench.tap", self._config, self._logs / f"{name}.log")


def _names(count: int) -> list[str]:
    """Returns the names of `count` taps: tap, tap-2, tap-3, ..."""
    return ["tap", *(f"tap-{number}" for number in range(2, count + 1))]


MOST = 3  # deaths of a part without a finished rollout in between, or responsible rollouts in a row, after which it is not restarted
SUSPECT = 2  # deaths of one part during a rollout after which that rollout runs alone


@dataclass(frozen=True)
class RestartDecision:
    """What follows from the death of a process of the session: whether it is started again, and which rollouts run alone or not again."""

    again: bool  # whether to start the process again
    alone: frozenset[RolloutKey] = frozenset()  # rollouts that must run alone from now on
    responsible: RolloutKey | None = None  # the rollout that caused the death, if known; it must not run again


class RestartPolicy:
    """Counts the deaths of a session's parts, and decides which are started again and which rollouts must run alone, or not again.

    A part is a process that rollouts depend on: pool, tap, template process, or a process of the backend.

    - A rollout that was in flight at SUSPECT deaths of a part runs alone from then on. If the part dies while that rollout runs alone,
      the rollout is responsible, and does not run again. Being interrupted by a death does not count as a retry.
    - A part is started again, except after MOST deaths without a finished rollout in between, or MOST responsible rollouts in a row.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()  # part -> deaths
        self._since: Counter[str] = Counter()  # part -> deaths since a rollout was finished or found responsible
        self._blamed: Counter[str] = Counter()  # part -> responsible rollouts since another rollout was finished
        self._in_flight: defaultdict[str, Counter[RolloutKey]] = defaultdict(Counter)  # part -> rollout -> deaths at which it was in flight
        self._responsible: set[RolloutKey] = set()

    def ended(self, key: RolloutKey, unused: Collection[str] = ()) -> None:
        """Records that a rollout has finished, so deaths in a row are counted anew, except for parts that it did not use (`unused`)."""
        if key not in self._responsible:
            for counts in (self._since, self._blamed):
                for part in counts.keys() - set(unused):
                    del counts[part]

    def add(self, part: str, in_flight: Collection[RolloutKey], *, responsible: RolloutKey | None = None) -> RestartDecision:
        """Records that a part died, and decides what follows.

        Args:
            part: Name of the part, for example "pool".
            in_flight: Rollouts that were running at that time.
            responsible: The rollout that the part itself has reported as the cause, if any.
        """
        self.counts[part] += 1
        self._since[part] += 1
        if responsible is None:
            self._in_flight[part].update(in_flight)
            responsible = self._if_alone(part, in_flight)
        if responsible is not None:
            self._since[part] = 0
            self._blamed[part] += 1
            self._responsible.add(responsible)
        return RestartDecision(self._since[part] < MOST and self._blamed[part] < MOST, self._suspects(part), responsible)

    def add_pool(self, pool: PoolProcess, in_flight: Collection[RolloutKey]) -> tuple[bool, list[AttemptEntry]]:
        """Counts the death of a pool. Returns whether another one may be started, and what follows for rollouts, for attempts.jsonl.

        Args:
            pool: The dead pool.
            in_flight: Rollouts that ran in the pool.
        """
        blocked = pool.blocked_rollout
        decision = self.add("pool", in_flight, responsible=blocked.key if blocked else None)
        why = f"the pool died ({pool.fault or f'exit code {pool.child.process.returncode}'})"
        entries: list[AttemptEntry] = [PoolDied(f"the pool was blocked by {blocked.key}" if blocked else why)]
        if decision.alone:
            entries.append(RunAlone(tuple(decision.alone)))
        if blocked is not None:
            entries.append(EndRollout(blocked))
        elif (key := decision.responsible) is not None:
            entries.append(EndRollout(Rollout(*key, status="agent_error", reason=self._verdict(key, pool))))
        return decision.again, entries

    def consequences(self, part: str, decision: RestartDecision) -> Iterator[RunAlone | EndRollout]:
        """Yields what follows for rollouts from the death of a part: which ones run alone, or not again."""
        if decision.alone:
            yield RunAlone(tuple(decision.alone))
        if (key := decision.responsible) is not None:
            times = self.deaths_during(part, key)
            why = f"{part} died {times} times while this rollout ran, the last time with nothing else in flight; run it alone with -k"
            yield EndRollout(Rollout(*key, status="infra_error", reason=why))

    def deaths_during(self, part: str, key: RolloutKey) -> int:
        """Returns how often a part died while this rollout was in flight."""
        return self._in_flight[part][key]

    def _if_alone(self, part: str, in_flight: Collection[RolloutKey]) -> RolloutKey | None:
        """Returns the only rollout that was in flight, if it ran alone because of earlier deaths, else None."""
        keys = [*in_flight]
        return keys[0] if len(keys) == 1 and self._in_flight[part][keys[0]] > SUSPECT else None

    def _suspects(self, part: str) -> frozenset[RolloutKey]:
        return frozenset(key for key, deaths in self._in_flight[part].items() if deaths >= SUSPECT)

    def _verdict(self, key: RolloutKey, pool: PoolProcess) -> str:
        code, times = pool.child.process.returncode, self.deaths_during("pool", key)
        how = pool.fault or (f"signal {-code}" if code < 0 else f"exit code {code}")
        return (
            f"the rollout ended the pool process ({how}): the pool died {times} times while it ran, "
            "the last time with nothing else in flight; `isolation: process` keeps code of the suite out of the pool"
        )


class UnavailableParts:
    """The parts that are unavailable: processes that rollouts depend on. A template process is used only by rollouts of its group."""

    def __init__(self) -> None:
        self._names: dict[str, frozenset[str]] = {}  # source of the report -> unavailable parts
        self.templates: dict[str, str] = {}  # name of a template process that has died -> group of rollouts

    def new(self, source: str, names: Collection[str]) -> frozenset[str]:
        """Returns those of `names` that the source has not reported yet."""
        return frozenset(names) - self._names.get(source, frozenset())

    def replace(self, source: str, names: Collection[str]) -> None:
        """Replaces the set of unavailable parts that a source watches."""
        self._names[source] = frozenset(names)

    def end_templates(self) -> None:
        """Forgets the template processes, because they have ended with their pool."""
        for name in self.templates:
            self._names.pop(name, None)

    @property
    def names(self) -> set[str]:
        return {name for names in self._names.values() for name in names}

    @property
    def hold(self) -> HoldAttempts:
        """The message that has the pool begin no attempt while these parts are unavailable."""
        return HoldAttempts({name: self.templates.get(name, "") for name in sorted(self.names)})

    def templates_of_others(self, group: str) -> set[str]:
        """Returns the names of template processes that rollouts of a group do not use."""
        return {name for name, own in self.templates.items() if own != group}
