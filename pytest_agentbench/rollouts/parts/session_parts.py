"""Starts the pool and the taps of one session, starts each again when it dies, and gives up if it dies too often."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from pytest_agentbench.errors import BackendError
from pytest_agentbench.lib.error_texts import cause
from pytest_agentbench.lib.process import Child
from pytest_agentbench.lib.threads import daemon
from pytest_agentbench.records import Endpoint, RolloutKey
from pytest_agentbench.rollouts import protocol
from pytest_agentbench.rollouts.parts.pool_and_tap_processes import (
    PoolProcess,
    RestartDecision,
    RestartPolicy,
    TapProcesses,
    UnavailableParts,
)
from pytest_agentbench.rollouts.protocol import NodeTerms, PoolConfig, PoolSettings
from pytest_agentbench.runs.attempts import AttemptLog, EndRollout, PoolEntry, PrepareBlock, RoundAdded, RunAlone
from pytest_agentbench.suites.suite import Task
from pytest_agentbench.tap.protocol import Budgets

NOTICE = 5.0  # seconds within which the death of a process is noticed
DIED = "died in the middle of the run"
DIED_AGAIN = "died repeatedly, with no rollout finished in between"


class Owner(Protocol):
    """The methods of the controller that SessionParts calls, from any thread.

    `fail`, `on_pool_lost` and `processes` can be called while SessionParts holds its lock, so they must not wait for another thread.
    """

    def on_message(self, pool: PoolProcess, message: protocol.SessionNote | protocol.SessionQuestion, body: bytes) -> None:
        """Handles a message of the pool that SessionParts does not handle itself, and answers it if it is a question."""

    def fail(self, reason: str) -> None:
        """Stops running rollouts for good, and has waiting tests fail with the reason."""

    def on_pool_lost(self, reason: str) -> None:
        """Is told that there is no pool any more and none will be started. `reason` is empty if the session ends."""

    def check_backend(self) -> None:
        """Checks whether the backend still answers, and tells the user if it does not."""

    def on_pool_died(self) -> None:
        """Is told that the pool has died, so no rollout runs until another pool is started."""

    def processes(self) -> Mapping[str, Child]:
        """Returns the processes of the backend that the controller watches: name -> process."""

    def unused(self, key: RolloutKey) -> Collection[str]:
        """Returns the names of the backend's processes that a rollout does not use."""


class SessionParts:
    """Owns the pool process and the tap processes of one session in the controller, and starts each again when it dies.

    1. `start` starts the taps and the pool. Tests may connect to `port` before that: the pool answers them when it serves.
    2. `begin` is called when the backend answers: the pool runs rollouts, and the taps are watched.
    3. `end` is called when the session ends: nothing is started again. `stop` then returns the processes that have to be stopped.

    Deaths. A part is a process that rollouts depend on: the pool, a tap, a process of the backend, a template process. While one is
    unavailable, the pool begins no attempt. The owner reports processes of the backend with `report_unavailable`, and the pool reports its
    template processes. `deaths` decides whether a part is started again, which rollouts run alone from then on, and which rollout is
    responsible. `log` (attempts.jsonl) contains its decisions about rollouts and the state of all attempts, and a new pool reads both
    there. The controller sends a new pool only which parts are unavailable, the addresses of backend and taps, and whether nothing can
    run any more.

    If a part dies too often, the owner's `fail` is called. After `fail`, the present pool tells tests why nothing runs. If the first pool
    does not serve, or a pool cannot be started, or none is alive after `fail`, the listening socket is closed (`abandon`), so that tests
    are refused instead of waiting.

    Invariants: at most one pool is alive, and `send` reaches that one. `_changed` is held whenever an attribute is changed. Methods may be
    called from any thread. Methods of the owner that may wait for other threads are called without that lock (see `Owner`).
    """

    def __init__(
        self,
        logs: Path,
        pool_settings: PoolSettings,
        taps: int,
        budgets: Budgets,
        log: AttemptLog,
        owner: Owner,
        nodes: NodeTerms | None = None,
    ) -> None:
        """Opens the listening socket, but starts no process.

        `logs` is the folder for the logs of the processes. If `nodes` is set, node workers make the attempts.
        """
        self.token = secrets.token_urlsafe(16)
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port: int = self.listener.getsockname()[1]
        self.mark = secrets.token_hex(16)  # value of an environment variable of all processes that agents start
        self.children: dict[str, Child] = {}  # name of the log -> process, of pool and taps
        self.deaths, self.log = RestartPolicy(), log
        self._logs, self._pool_settings, self._owner = logs, pool_settings, owner
        self._tap_count, self._budgets, self._nodes = taps, budgets, nodes
        self._pool: PoolProcess | None = None
        self._taps: TapProcesses | None = None
        self._endpoint: Endpoint | None = None
        self._endpoints: dict[str, Endpoint] = {}  # URL -> endpoint that rollouts of this session have called
        self._unbuilt: Mapping[str, str] = {}
        self._images: tuple[Task, ...] = ()
        self._began_at = 0.0  # seconds, time.monotonic(), since when rollouts can run
        self._failed: protocol.NothingRuns | None = None  # set if nothing can run any more, with the reason for tests
        self._unavailable = UnavailableParts()
        self._is_ending = False  # whether processes are no longer started again
        self._catch_ups_sent = self._catch_ups_answered = 0  # numbers of the last `CatchUp` and the last `CaughtUp`
        self._changed = threading.Condition()

    def start(self) -> None:
        """Starts the pool and the taps. Tests can send requests before it returns. Raises BackendError if a tap does not serve."""
        taps = TapProcesses(self._tap_count, self._budgets, self._logs)
        with self._changed:
            self._taps = taps
            self.children.update(taps.children)
            try:
                self._start_pool()
            except Exception as error:
                self.break_down(error)
                raise
        taps.ready()

    def begin(self, endpoint: Endpoint, unbuilt: Mapping[str, str], images: Sequence[Task] = ()) -> None:
        """Lets the pool run rollouts, because the backend answers.

        `unbuilt`: image of a task that could not be built -> reason. `images` has a task for each image that node workers have to build.
        """
        with self._changed:
            self._endpoint, self._began_at = endpoint, time.monotonic()
            self._unbuilt, self._images = unbuilt, tuple(images)
            self._endpoints[endpoint.url] = endpoint
            self._tell_start()
        assert self._taps is not None
        for name in self._taps.children:
            daemon(self._watch_tap, name, name=f"watch-{name}")

    def move(self, endpoint: Endpoint) -> None:
        """Sends later calls of rollouts to the endpoint of a backend that was booted again, possibly at another address."""
        with self._changed:
            self._endpoint = self._endpoints[endpoint.url] = endpoint
            self.send(protocol.BackendMoved(endpoint))

    def answer_turn(self, pool: PoolProcess, answer: protocol.Turn | protocol.NoTurn) -> None:
        """Tells a pool that has sent `PrepareBlock` whether its next block (rollouts of one arm) can run.

        A `Turn` says that the arm (a setting under comparison) is ready.
        """
        with self._changed:
            if isinstance(answer, protocol.Turn):
                self._endpoints[answer.endpoint.url] = answer.endpoint
            pool.send(answer)

    def send(self, message: protocol.ToPool) -> bool:
        """Sends a message to the pool. Returns False if there is no pool or it has died. The caller need not handle a death."""
        pool = self._pool
        return pool is not None and pool.send(message)

    def add_round(self, keys: Sequence[RolloutKey], *, tell: bool) -> None:
        """Has the pool run these further trials (repetitions), which no test requests. Without keys, notes that no more will follow.

        If `tell` is False, the pool is not told, because the caller sends it the keys in an answer.
        """
        with self._changed:
            self.log.append(RoundAdded(tuple(keys)))
            if tell:
                self.send(protocol.AddRound(tuple(keys)))

    def fail(self, reason: str, status: str) -> None:
        """Has this pool and later ones refuse the rollouts that have not begun, with this reason."""
        with self._changed:
            self._failed = protocol.NothingRuns(reason, status)
            self._changed.notify_all()
            if self._pool is None:
                self.abandon(reason)
            else:
                self.send(self._failed)

    def end(self) -> None:
        """Prevents all restarts from now on."""
        with self._changed:
            self._is_ending = True
            if self._taps is not None:
                self._taps.end()
            self._changed.notify_all()

    def abandon(self, reason: str) -> None:
        """Closes the listening socket and kills the pool, so that requests of tests fail instead of waiting."""
        self.listener.close()
        if self._pool is not None:
            self._pool.child.process.kill()
        self._owner.on_pool_lost(reason)

    def break_down(self, error: BaseException) -> None:
        """Abandons the pool because a thread of the session could not start or has failed. Nothing is started again."""
        self.end()
        reason = f"agentbench cannot run rollouts: {error if isinstance(error, BackendError) else cause(error)}"
        try:
            self._owner.on_pool_lost(reason)
        finally:
            self.abandon(reason)

    def stop(self) -> list[Child]:
        """Closes the connection to the pool, and returns the processes of pool and taps, which the caller has to stop."""
        self.end()
        self.listener.close()
        if self._pool is not None:
            self._pool.close()
        return [*([self._pool.child] if self._pool else []), *(self._taps.stop() if self._taps else [])]

    def report_unavailable(self, source: str, names: Collection[str]) -> bool:
        """Replaces the set of unavailable parts that `source` watches. No attempt begins while a part is unavailable.

        Returns whether they may be started again.
        """
        with self._changed:
            new = self._unavailable.new(source, names)
            self._set_unavailable(source, names)  # Set this first, because a pool that starts meanwhile needs it.
        if new:
            self._catch_up()
        with self._changed:
            again = [self._apply(name, self.deaths.add(name, self.log.in_flight)) for name in sorted(new)]
            return all(again) and not self._is_ending

    def _set_unavailable(self, source: str, names: Collection[str]) -> None:
        with self._changed:
            self._unavailable.replace(source, names)
            self.send(self._unavailable.hold)
            self._changed.notify_all()

    def _template_died(self, name: str, group: str, on_node: Collection[RolloutKey] | None) -> bool:
        """Counts the death of a template process of the pool. Returns whether the pool may start it again.

        `on_node` are the rollouts that ran beside it if it was on a node. Then the pool itself notes that the process is unavailable.
        """
        with self._changed:
            if on_node is not None:
                return self._apply(name, self.deaths.add(name, on_node)) and not self._is_ending
            self._unavailable.templates[name] = group
            in_flight = [key for key in self.log.in_flight if key.group == group]
            again = self._apply(name, self.deaths.add(name, in_flight)) and not self._is_ending
            self._set_unavailable(name, {name})
            return again

    def _catch_up(self) -> None:
        """Waits, for NOTICE seconds at most, until all earlier messages of the pool are handled. They tell which attempts have begun."""
        with self._changed:
            self._catch_ups_sent += 1
            number, pool = self._catch_ups_sent, self._pool
        if self.send(protocol.CatchUp(number)):
            with self._changed:
                self._changed.wait_for(lambda: self._catch_ups_answered >= number or self._is_ending or self._pool is not pool, NOTICE)

    def _apply(self, part: str, decision: RestartDecision) -> bool:
        """Tells the pool which rollouts run alone, or not again, after a part died. Returns whether that part may be started again."""
        for entry in self.deaths.consequences(part, decision):
            self._tell_all(entry)
        return decision.again

    def _tell_all(self, decision: RunAlone | EndRollout) -> None:
        """Sends a decision about rollouts to this pool, and writes it to attempts.jsonl for later pools."""
        self.log.append(decision)
        self.send(decision)

    def _tell_start(self) -> None:
        if self._endpoint is not None and self._taps is not None:
            elapsed = time.monotonic() - self._began_at
            known, images = tuple(self._endpoints.values()), self._images
            self.send(protocol.Start(self._endpoint, known, self._taps.facts, elapsed, self._unbuilt, images))

    def _start_pool(self) -> None:
        number = 1 + self.deaths.counts["pool"]

        def config(pipe: int) -> PoolConfig:
            directory, size = self.log.path.parent, self.log.size
            return PoolConfig(self.token, self.listener.fileno(), pipe, self._pool_settings, number, directory, size, self._nodes)

        inherited = () if self._nodes is None else (self._nodes.listener,)
        self._pool = PoolProcess(config, self.listener, self._logs / "pool.log", self.mark, inherited)
        self.children["pool"] = self._pool.child
        self._pool.begin(self._on_message, self._pool_died)
        self._changed.notify_all()

    def _pool_died(self, pool: PoolProcess, has_served: bool) -> None:
        try:
            if self._is_replaced(has_served):
                # Without the lock, because this may take as long as an arm takes to load, and the session may end meanwhile.
                self._owner.on_pool_died()
            with self._changed:
                if self._is_ending:
                    self._owner.on_pool_lost("")
                elif self._is_replaced(has_served):
                    self._replace(pool)
                else:
                    self.abandon(f"the pool is gone: {pool.exit_message(DIED)}")
        except Exception as error:
            self.break_down(error)

    def _is_replaced(self, has_served: bool) -> bool:
        """Returns whether to start another pool after one has died. Returns False if the first pool died before it served."""
        with self._changed:
            return not self._is_ending and self._failed is None and (has_served or self.deaths.counts["pool"] > 0)

    def _replace(self, pool: PoolProcess) -> None:
        """Writes to attempts.jsonl what follows from the death of `pool`, and starts another pool, which reads that."""
        self._unavailable.end_templates()
        in_flight = self.log.in_flight if self._nodes is None else ()  # On nodes, no rollout runs in the pool.
        again, entries = self.deaths.add_pool(pool, in_flight)
        for entry in entries:
            self.log.append(entry)
        if not again:
            self._owner.fail(f"the pool is gone: {pool.exit_message(DIED_AGAIN)}")
        self._start_pool()
        if self._failed is not None:
            self.send(self._failed)
        self.send(self._unavailable.hold)
        self._tell_start()

    def _watch_tap(self, name: str) -> None:
        assert self._taps is not None
        while True:
            child = self._taps.children[name]
            child.process.wait()
            if self._is_ending:
                return
            child.close_pipes()
            if not self.report_unavailable(name, {name}):
                self._lose_tap(child.exit_message(DIED_AGAIN))
                return
            try:
                if not self._taps.start_again(name):
                    return
            except Exception as error:
                self._lose_tap(str(error) if isinstance(error, BackendError) else cause(error))
                return
            with self._changed:
                self.children[name] = self._taps.children[name]
                self.send(protocol.TapsRestarted(self._taps.facts))
                self.report_unavailable(name, ())

    def _lose_tap(self, why: str) -> None:
        """Stops running rollouts for good, because a tap is not started again. Does nothing if the session ends."""
        if not self._is_ending:
            self._owner.fail(f"the tap is gone: {why}")

    def _on_message(self, pool: PoolProcess, message: protocol.ToController, body: bytes) -> None:
        if isinstance(message, PoolEntry):
            self.log.append(message)
            if not isinstance(message, PrepareBlock):
                return
        match message:
            case protocol.CheckProcesses():
                daemon(self._check_processes, pool, name="check-processes")
            case protocol.TemplateLost(name, group, on_node):
                pool.send(protocol.TemplateVerdict(self._template_died(name, group, on_node)))
            case protocol.TemplateServes(name):
                self._set_unavailable(name, ())
            case protocol.CaughtUp(number):
                with self._changed:
                    self._catch_ups_answered = number
                    self._changed.notify_all()
            case _:
                self._owner.on_message(pool, message, body)

    def _check_processes(self, pool: PoolProcess) -> None:
        """Has the backend checked, and answers the pool's `CheckProcesses` when all deaths so far have been noticed."""
        try:
            self._owner.check_backend()
        except Exception as error:
            self.break_down(error)
            return
        with self._changed:
            self._changed.wait_for(self._is_settled, NOTICE)
            pool.send(protocol.ProcessesChecked())

    def _is_settled(self) -> bool:
        if self._is_ending or self._failed is not None:
            return True
        watched = {**(self._taps.children if self._taps else {}), **self._owner.processes()}
        return not any(child.is_gone for name, child in watched.items() if name not in self._unavailable.names)

    def ended(self, key: RolloutKey, calls: int, kind: str) -> None:
        """Notes that a rollout is in the journal. `calls` is the number of its LLM calls, `kind` the `kind` of its record."""
        self.log.mark_recorded(key, calls)
        if kind == "scenario":
            unused = self._owner.unused(key)
            with self._changed:
                self.deaths.ended(key, {*unused, *self._unavailable.templates_of_others(key.group)})
