"""The pool and the taps of one session: started together, each started again when it dies, and given up if that does not help."""

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
from pytest_agentbench.records import Endpoint, Rollout, RolloutKey
from pytest_agentbench.rollouts import protocol
from pytest_agentbench.rollouts.parts.pool_and_tap_processes import PoolProcess, RestartDecision, RestartPolicy, TapProcesses
from pytest_agentbench.rollouts.protocol import PoolConfig, PoolSettings
from pytest_agentbench.runs.attempts import AttemptLog, EndRollout, PoolDied, PoolEntry, PrepareBlock, RoundAdded, RunAlone
from pytest_agentbench.tap.protocol import Budgets

NOTICE = 5.0  # seconds that the death of a process may take to be noticed
DIED = "died in the middle of the run"
DIED_AGAIN = f"{DIED}, again and again with no rollout that got through"


class Owner(Protocol):
    """What the parts need of the controller. All methods may be called from any thread.

    `fail`, `on_pool_lost` and `processes` can be called while the lock of the parts is held, so they must not wait for another thread.
    """

    def on_message(self, pool: PoolProcess, message: protocol.SessionNote | protocol.SessionQuestion, body: bytes) -> None:
        """Takes a message of the pool that is not about parts, and answers a question."""

    def fail(self, reason: str) -> None:
        """Nothing can run any more."""

    def on_pool_lost(self, reason: str) -> None:
        """No pool exists, and none will be started, so requests to it are refused. `reason` is empty when the session ends."""

    def look(self) -> None:
        """Asks the backend whether it still answers."""

    def paused(self) -> None:
        """The pool has died, so no rollout runs."""

    def processes(self) -> Mapping[str, Child]:
        """Returns the processes of the backend whose deaths this session notices."""

    def unused(self, key: RolloutKey) -> Collection[str]:
        """Returns the processes of the backend that a rollout does not use."""


class SessionParts:
    """The processes of one session's pool and taps. Each is started again on the same port when it dies.

    1. `start` starts the taps and the pool. Tests may connect to `port` before that: the pool answers them when it serves.
    2. `begin` is called when the backend answers: the pool runs rollouts, and the taps are watched.
    3. `end` is called when the session ends: nothing is started again. `stop` then returns the processes that are to be stopped.

    Deaths. While a part is away, the pool begins no attempt. This also applies to parts that others watch: the owner reports processes of
    the backend with `away`, and the pool reports its templates. `deaths` decides whether a part is started again, which rollouts run
    alone from then on, and which one is to blame. What it decides about rollouts is in `log`, with the state of all attempts, and a new
    pool reads it there. The controller sends a new pool only what is about the session's parts: which are away, where backend and taps
    are, and whether nothing can run any more.

    If a part dies too often, the owner fails. After `fail`, the present pool tells tests why nothing runs. If the first pool does not
    serve, or a pool cannot be started, or none is alive after `fail`, the listening socket is closed (`abandon`), so that tests are
    refused instead of waiting.

    Invariants: at most one pool is alive, and `send` reaches that one. `_changed` is held whenever an attribute is changed. Methods may be
    called from any thread. Methods of the owner that may wait for other threads are called without that lock (see `Owner`).
    """

    def __init__(self, logs: Path, pool_settings: PoolSettings, taps: int, budgets: Budgets, log: AttemptLog, owner: Owner) -> None:
        """Opens the listening socket; starts nothing. `logs` is a folder for the logs of the processes."""
        self.token = secrets.token_urlsafe(16)
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port: int = self.listener.getsockname()[1]
        self.mark = secrets.token_hex(16)  # in the environment of all processes that agents start
        self.children: dict[str, Child] = {}  # pool and taps, by the names of their logs
        self.deaths, self.log = RestartPolicy(), log
        self._logs, self._pool_settings, self._owner = logs, pool_settings, owner
        self._tap_count, self._budgets = taps, budgets
        self._pool: PoolProcess | None = None
        self._taps: TapProcesses | None = None
        self._endpoint: Endpoint | None = None
        self._known: dict[str, Endpoint] = {}  # URL -> endpoint that rollouts of this session have called
        self._unbuilt: Mapping[str, str] = {}
        self._began = 0.0  # seconds, time.monotonic(), when rollouts could run
        self._failed: protocol.NothingRuns | None = None  # what tests are told when nothing can run any more
        self._away: dict[str, frozenset[str]] = {}  # who reports them -> parts that are away
        self._templates: dict[str, str] = {}  # names of template processes that have died -> suite and variant
        self._over = False  # nothing is started again
        self._asked = self._echoed = 0  # questions to the pool whether it has said all, and answers
        self._changed = threading.Condition()

    def start(self) -> None:
        """Raises BackendError when a tap does not serve; tests can ask the pool before that."""
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

    def begin(self, endpoint: Endpoint, unbuilt: Mapping[str, str]) -> None:
        """The backend answers: rollouts run from now on. `unbuilt` are images of tasks that there are not, and why."""
        with self._changed:
            self._endpoint, self._unbuilt, self._began = endpoint, unbuilt, time.monotonic()
            self._known[endpoint.url] = endpoint
            self._tell_start()
        assert self._taps is not None
        for name in self._taps.children:
            daemon(self._watch_tap, name, name=f"watch-{name}")

    def move(self, endpoint: Endpoint) -> None:
        """Has calls go to a backend that was booted again, which may answer elsewhere."""
        with self._changed:
            self._endpoint = self._known[endpoint.url] = endpoint
            self.send(protocol.BackendMoved(endpoint))

    def answer_turn(self, pool: PoolProcess, answer: protocol.Turn | protocol.NoTurn) -> None:
        """Answers `PrepareBlock` of a pool."""
        with self._changed:
            if isinstance(answer, protocol.Turn):
                self._known[answer.endpoint.url] = answer.endpoint
            pool.send(answer)

    def send(self, message: protocol.ToPool) -> bool:
        """Whether the pool could be told; one that died is noticed by those who watch it."""
        pool = self._pool
        return pool is not None and pool.send(message)

    def add_round(self, keys: Sequence[RolloutKey], *, tell: bool) -> None:
        """Runs rollouts that no test asks for; without keys, those are over. If `tell` is False, the pool gets them as an answer."""
        with self._changed:
            self.log.append(RoundAdded(tuple(keys)))
            if tell:
                self.send(protocol.AddRound(tuple(keys)))

    def fail(self, reason: str, status: str) -> None:
        """Every test that waits is told why; what follows is told to the next pool as well."""
        with self._changed:
            self._failed = protocol.NothingRuns(reason, status)
            self._changed.notify_all()
            if self._pool is None:
                self.abandon(reason)
            else:
                self.send(self._failed)

    def end(self) -> None:
        """Nothing is started again from now on."""
        with self._changed:
            self._over = True
            if self._taps is not None:
                self._taps.end()
            self._changed.notify_all()

    def abandon(self, reason: str) -> None:
        """There is no pool that can be told: whoever waits for it shall be refused instead."""
        self.listener.close()
        if self._pool is not None:
            self._pool.child.process.kill()
        self._owner.on_pool_lost(reason)

    def break_down(self, error: BaseException) -> None:
        """A thread of the session cannot start, or has failed: whoever waits for it is refused instead, and nothing is started again."""
        self.end()
        reason = f"agentbench cannot run rollouts: {error if isinstance(error, BackendError) else cause(error)}"
        try:
            self._owner.on_pool_lost(reason)
        finally:
            self.abandon(reason)

    def stop(self) -> list[Child]:
        """The processes that are to be stopped; nothing is said to the pool any more."""
        self.end()
        self.listener.close()
        if self._pool is not None:
            self._pool.close()
        return [*([self._pool.child] if self._pool else []), *(self._taps.stop() if self._taps else [])]

    def away(self, source: str, names: Collection[str]) -> bool:
        """Somebody says which of his parts are away, so that no attempt begins; whether they may be started again."""
        with self._changed:
            new = frozenset(names) - self._away.get(source, frozenset())
            self._set_away(source, names)  # first, because a pool that starts meanwhile has to know it
        if new:
            self._catch_up()
        with self._changed:
            again = [self._follow(name, self.deaths.add(name, self.log.in_flight)) for name in sorted(new)]
            return all(again) and not self._over

    def _set_away(self, source: str, names: Collection[str]) -> None:
        with self._changed:
            self._away[source] = frozenset(names)
            self._tell_away()
            self._changed.notify_all()

    def _template_died(self, name: str, group: str) -> bool:
        """Counts the death of a template process of the pool; returns whether it may be started again."""
        with self._changed:
            self._templates[name] = group
            in_flight = [key for key in self.log.in_flight if key.group == group]
            again = self._follow(name, self.deaths.add(name, in_flight)) and not self._over
            self._set_away(name, {name})
            return again

    def _catch_up(self) -> None:
        """Waits until all is heard that the pool has said, which attempts it has begun among that; for a while at most."""
        with self._changed:
            self._asked += 1
            number, pool = self._asked, self._pool
        if self.send(protocol.CatchUp(number)):
            with self._changed:
                self._changed.wait_for(lambda: self._echoed >= number or self._over or self._pool is not pool, NOTICE)

    def _follow(self, part: str, death: RestartDecision) -> bool:
        """Tells the pool what follows from the death of another part."""
        if death.alone:
            self._tell_all(RunAlone(tuple(death.alone)))
        if (key := death.responsible) is not None:
            why = f"{part} died {self.deaths.met(part, key)} times while this rollout ran, the last time while nothing else did"
            self._tell_all(EndRollout(Rollout(*key, status="infra_error", reason=why)))
        return death.again

    def _tell_all(self, decision: RunAlone | EndRollout) -> None:
        """Tells a decision to this pool, and to all later ones."""
        self.log.append(decision)
        self.send(decision)

    def _tell_away(self) -> None:
        names = sorted(name for names in self._away.values() for name in names)
        self.send(protocol.HoldAttempts({name: self._templates.get(name, "") for name in names}))

    def _tell_start(self) -> None:
        if self._endpoint is not None and self._taps is not None:
            elapsed = time.monotonic() - self._began
            self.send(protocol.Start(self._endpoint, tuple(self._known.values()), self._taps.facts, elapsed, self._unbuilt))

    def _start_pool(self) -> None:
        number = 1 + self.deaths.counts["pool"]

        def config(pipe: int) -> PoolConfig:
            directory, size = self.log.path.parent, self.log.size
            return PoolConfig(self.token, self.listener.fileno(), pipe, self._pool_settings, number, directory, size)

        self._pool = PoolProcess(config, self.listener, self._logs / "pool.log", self.mark)
        self.children["pool"] = self._pool.child
        self._pool.begin(self._hear, self._pool_died)
        self._changed.notify_all()

    def _pool_died(self, pool: PoolProcess, has_served: bool) -> None:
        try:
            if self._is_replaced(has_served):
                self._owner.paused()  # Without the lock: this may take as long as an arm takes to load, and the session may end meanwhile.
            with self._changed:
                if self._over:
                    self._owner.on_pool_lost("")
                elif self._is_replaced(has_served):
                    self._replace(pool)
                else:
                    self.abandon(f"the pool is gone: {pool.exit_message(DIED)}")
        except Exception as error:
            self.break_down(error)

    def _is_replaced(self, has_served: bool) -> bool:
        """Returns whether another pool is started after one that has died. If the first one never served, the next one would not either."""
        with self._changed:
            return not self._over and self._failed is None and (has_served or self.deaths.counts["pool"] > 0)

    def _replace(self, pool: PoolProcess) -> None:
        """Starts another pool, which reads what this one has told and what follows from its death."""
        blocked = pool.last_words
        for name in self._templates:  # these processes ended with the pool
            self._away.pop(name, None)
        death = self.deaths.add("pool", self.log.in_flight, responsible=blocked.key if blocked else None)
        why = f"the pool died ({pool.fault or f'exit code {pool.child.process.returncode}'})"
        self.log.append(PoolDied(f"the pool was blocked by {blocked.key}" if blocked else why))
        if death.alone:
            self.log.append(RunAlone(tuple(death.alone)))
        if blocked is not None:
            self.log.append(EndRollout(blocked))
        elif death.responsible is not None:
            self.log.append(EndRollout(Rollout(*death.responsible, status="agent_error", reason=self._verdict(death.responsible, pool))))
        if not death.again:
            self._owner.fail(f"the pool is gone: {pool.exit_message(DIED_AGAIN)}")
        self._start_pool()
        if self._failed is not None:
            self.send(self._failed)
        self._tell_away()
        self._tell_start()

    def _verdict(self, key: RolloutKey, pool: PoolProcess) -> str:
        code, times = pool.child.process.returncode, self.deaths.met("pool", key)
        how = pool.fault or (f"signal {-code}" if code < 0 else f"exit code {code}")
        return f"it ends its process ({how}): the pool died {times} times while it ran, the last time with nothing else in flight"

    def _watch_tap(self, name: str) -> None:
        assert self._taps is not None
        while True:
            child = self._taps.children[name]
            child.process.wait()
            if self._over:
                return
            child.close_pipes()
            if not self.away(name, {name}):
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
                self.away(name, ())

    def _lose_tap(self, why: str) -> None:
        """Fails because a tap is not started again, unless that is because the session ends."""
        if not self._over:
            self._owner.fail(f"the tap is gone: {why}")

    def _hear(self, pool: PoolProcess, message: protocol.ToController, body: bytes) -> None:
        if isinstance(message, PoolEntry):
            self.log.append(message)
            if not isinstance(message, PrepareBlock):
                return
        match message:
            case protocol.CheckProcesses():
                daemon(self._look, pool, name="look")
            case protocol.TemplateLost(name, group):
                pool.send(protocol.TemplateVerdict(self._template_died(name, group)))
            case protocol.TemplateServes(name):
                self._set_away(name, ())
            case protocol.CaughtUp(number):
                with self._changed:
                    self._echoed = number
                    self._changed.notify_all()
            case _:
                self._owner.on_message(pool, message, body)

    def _look(self, pool: PoolProcess) -> None:
        """Answers when everything that has died or does not answer is known."""
        try:
            self._owner.look()
        except Exception as error:
            self.break_down(error)
            return
        with self._changed:
            self._changed.wait_for(self._is_settled, NOTICE)
            pool.send(protocol.ProcessesChecked())

    def _is_settled(self) -> bool:
        if self._over or self._failed is not None:
            return True
        away = {name for names in self._away.values() for name in names}
        watched = {**(self._taps.children if self._taps else {}), **self._owner.processes()}
        return not any(child.is_gone for name, child in watched.items() if name not in away)

    def ended(self, key: RolloutKey, calls: int, kind: str) -> None:
        """Takes down that a rollout is in the journal, with so many LLM calls."""
        self.log.mark_recorded(key, calls)
        if kind == "scenario":
            unused = self._owner.unused(key)
            with self._changed:
                others = (name for name, group in self._templates.items() if group != key.group)
                self.deaths.ended(key, {*unused, *others})
