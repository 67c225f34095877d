"""The processes of pool and taps, as the controller holds them: how they are started, what they said last, their ports, and
what follows from their deaths.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_agentbench.backends.machine.ports import shared_port
from pytest_agentbench.lib import json_text, wire
from pytest_agentbench.lib.error_texts import cause
from pytest_agentbench.lib.messages import OtherVersion
from pytest_agentbench.lib.process import SESSION, Child, start_again
from pytest_agentbench.lib.threads import daemon
from pytest_agentbench.records import Rollout, RolloutKey
from pytest_agentbench.rollouts.protocol import FROM_PIPE, TO_CONTROLLER, BlockedBy, PoolConfig, ShowUser, ToController, ToPool
from pytest_agentbench.tap.clock import enable_timestamps
from pytest_agentbench.tap.protocol import Budgets, TapConfig, TapListening, TapPorts

OnMessage = Callable[["PoolProcess", ToController, bytes], None]


HELD_OPEN = 1.0  # seconds for a pipe that something which the pool's agents have left behind holds open


class PoolProcess:
    """Started at once; `begin` has somebody listen to it."""

    def __init__(self, config: Callable[[int], PoolConfig], listener: socket.socket, log: Path, mark: str) -> None:
        """`config` is called with the file descriptor of the pipe that the pool writes its last words to.

        The pool serves on `listener`, which stays open here for the next pool. `mark` is in the environment of all processes that
        agents start.
        """
        self._pipe, theirs = os.pipe()
        try:
            settings, inherited = config(theirs), (listener.fileno(), theirs)
            self.child = Child("pytest_agentbench.rollouts.pool", settings, log, pass_fds=inherited, variables={SESSION: mark})
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(theirs)
        self.blocked_rollout: Rollout | None = None  # how the rollout ends over which a pool ended itself
        self.fault = ""  # why the controller has ended it; empty for a pool that ended otherwise
        self._line = wire.connect(listener.getsockname()[1], settings.token, "controller")
        self._sending = threading.Lock()

    def begin(self, on_message: OnMessage, on_death: Callable[[PoolProcess, bool], None]) -> None:
        """`on_message` gets what the pool tells; `on_death` is called when all was heard and it is dead, with whether it ever served."""
        listening = daemon(self._listen, on_message, name="pool")
        self._reading = daemon(self._read_pipe, on_message, name="pool-pipe")
        daemon(self._watch, listening, on_death, name="watch-pool")

    def send(self, message: ToPool, body: bytes = b"") -> bool:
        """Whether it could be told."""
        with self._sending:
            try:
                wire.send(self._line, message, body)
            except OSError:
                return False
            return True

    def exit_message(self, why: str) -> str:
        """Returns what `Child.exit_message` does, with the reason if the controller has ended it."""
        return self.child.exit_message(f"{why}: {self.fault}", by_us=True) if self.fault else self.child.exit_message(why)

    def close(self) -> None:
        """Nobody listens any more."""
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)  # whoever reads from it is woken

    def _listen(self, on_message: OnMessage) -> None:
        try:
            while True:
                header, body = wire.receive(self._line)
                on_message(self, TO_CONTROLLER.read(header), body)
        except BaseException as error:
            if isinstance(error, OSError) and not isinstance(error, OtherVersion):
                return  # it is dead, or about to be
            self.fault = f"the controller failed on what the pool sent, and has ended it: {cause(error)}"
            self.child.process.kill()  # it would wait for an answer for ever; the next one is heard again
            raise

    def _watch(self, listening: threading.Thread, on_death: Callable[[PoolProcess, bool], None]) -> None:
        assert self.child.process.stdout is not None
        has_served = bool(self.child.process.stdout.readline())
        self.child.process.wait()
        if not has_served:
            self.close()  # nobody has taken it up
        listening.join()
        self._reading.join(HELD_OPEN)
        on_death(self, has_served)
        self._line.close()
        self.child.close_pipes()

    def _read_pipe(self, on_message: OnMessage) -> None:
        """What it says while its event loop stands still."""
        with os.fdopen(self._pipe, "rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):  # its end came in the middle of it
                    return
                try:
                    message = FROM_PIPE.read(json_text.loads(line))
                except ValueError as error:
                    message = ShowUser(f"what the pool says while its event loop is blocked cannot be read: {error}")
                match message:
                    case ShowUser():
                        on_message(self, message, b"")
                    case BlockedBy(rollout):
                        self.blocked_rollout = rollout


class TapProcesses:
    """The tap processes of one session. They are started at once, and `ready` waits until they serve.

    The port for agents is reserved until `stop`, so each tap that is started later listens there again. Control ports change.
    """

    def __init__(self, processes: int, budgets: Budgets, logs: Path) -> None:
        self._reserved = shared_port()
        enable_timestamps(self._reserved)  # so that the kernel goes on stamping while no tap is there to want it
        self._config = TapConfig(secrets.token_urlsafe(16), budgets, self._reserved.getsockname()[1])
        self._logs = logs
        self.children = {name: self._start(name) for name in _names(processes)}
        self._ports: dict[str, TapListening] = {}
        self._starting = threading.Lock()
        self._ended = False

    def ready(self) -> None:
        """Waits until all of them serve; raises BackendError when one does not."""
        for name, child in self.children.items():
            self._ports[name] = child.ready(TapListening)

    @property
    def facts(self) -> TapPorts:
        """What the pool has to know of them."""
        return TapPorts(self._config.port, tuple(each.control_port for each in self._ports.values()), self._config.token)

    def start_again(self, name: str) -> bool:
        """Starts a tap in the place of a dead one; returns False if the session ends. Raises BackendError if it does not serve."""

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
        """No tap is started any more."""
        with self._starting:
            self._ended = True

    def stop(self) -> list[Child]:
        """Ends, lets the port go, and returns the processes that are to be stopped."""
        self.end()
        self._reserved.close()
        return [*self.children.values()]

    def _start(self, name: str) -> Child:
        return Child("pytest_agentbench.tap", self._config, self._logs / f"{name}.log")


def _names(count: int) -> list[str]:
    """tap, tap-2, tap-3, ..."""
    return ["tap", *(f"tap-{number}" for number in range(2, count + 1))]


MOST = 3  # deaths of one part between which no rollout ended, and as many rollouts to blame one after the other
SUSPECT = 2  # deaths of one part at which a rollout was in flight


@dataclass(frozen=True)
class RestartDecision:
    """What follows from one."""

    again: bool  # whether the part is to be started again
    alone: frozenset[RolloutKey] = frozenset()  # rollouts beside which nothing else is to run from now on
    responsible: RolloutKey | None = None  # the rollout that nothing but can have been the cause; it is not to run again


class RestartPolicy:
    """Of one session. No rollout counts for less because a part died while it ran; but a part is not started again for ever.

    What was in flight at two deaths of a part runs alone; when the part dies a third time then, the one that ran is to blame.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()  # part -> deaths
        self._since: Counter[str] = Counter()  # part -> deaths since a rollout ended, or was to blame
        self._blamed: Counter[str] = Counter()  # part -> rollouts to blame since another one ended
        self._in_flight: defaultdict[str, Counter[RolloutKey]] = defaultdict(Counter)  # part -> rollout -> deaths at which it was in flight
        self._responsible: set[RolloutKey] = set()

    def ended(self, key: RolloutKey, unused: Collection[str] = ()) -> None:
        """A rollout is in the journal; that it got through says nothing of parts that it had no use for."""
        if key not in self._responsible:
            for counts in (self._since, self._blamed):
                for part in counts.keys() - set(unused):
                    del counts[part]

    def add(self, part: str, in_flight: Collection[RolloutKey], *, responsible: RolloutKey | None = None) -> RestartDecision:
        """A part has died while these rollouts were in flight; `responsible` where the part itself has said which one it was."""
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

    def deaths_during(self, part: str, key: RolloutKey) -> int:
        """RestartPolicy of a part at which a rollout was in flight."""
        return self._in_flight[part][key]

    def _if_alone(self, part: str, in_flight: Collection[RolloutKey]) -> RolloutKey | None:
        """The rollout that ran alone, when that was why."""
        keys = [*in_flight]
        return keys[0] if len(keys) == 1 and self._in_flight[part][keys[0]] > SUSPECT else None

    def _suspects(self, part: str) -> frozenset[RolloutKey]:
        return frozenset(key for key, deaths in self._in_flight[part].items() if deaths >= SUSPECT)
