"""The services of a session, as the controller starts, watches, restarts and stops them.

They are the backend, the taps (proxies that record LLM calls) and the pool (the process that runs rollouts).
"""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Concatenate, ParamSpec, assert_never

from pytest_agentbench.backends.backend import Backend
from pytest_agentbench.backends.machine.cpu import CpuWatch
from pytest_agentbench.backends.orphans import end_orphans
from pytest_agentbench.backends.telemetry.samples import FILE as SAMPLES
from pytest_agentbench.backends.telemetry.samples import Sampler
from pytest_agentbench.errors import AgentbenchError, MissingError
from pytest_agentbench.lib.error_texts import cause
from pytest_agentbench.lib.kept_values import FILE as MESSAGES
from pytest_agentbench.lib.process import SESSION, Child, end_marked
from pytest_agentbench.lib.redact import Redactor
from pytest_agentbench.lib.threads import daemon
from pytest_agentbench.records import Endpoint, Json, RolloutKey, arm_of
from pytest_agentbench.rollouts import protocol
from pytest_agentbench.rollouts.parts.pool_and_tap_processes import PoolProcess
from pytest_agentbench.rollouts.parts.session_parts import SessionParts
from pytest_agentbench.rollouts.protocol import PoolSettings
from pytest_agentbench.runs.attempts import AttemptLog, PrepareBlock, RolloutsPlanned, RolloutTally
from pytest_agentbench.runs.nodes import NodeCpu, NodeRecord
from pytest_agentbench.sandbox.factory import TaskImages
from pytest_agentbench.session.arm_switcher import ArmSwitcher
from pytest_agentbench.session.nodes import SessionNodes
from pytest_agentbench.session.recorder import RunRecorder
from pytest_agentbench.session.rounds import Rounds
from pytest_agentbench.tap.protocol import Budgets

DRAIN = 10.0  # Seconds that running rollouts get to finish when the session ends
SETTLE = 1.0  # Seconds that a booting backend gets to notice that it was stopped

P = ParamSpec("P")


def _fails_waiting_tests(work: Callable[Concatenate[Services, P], None]) -> Callable[Concatenate[Services, P], None]:
    """Decorates a method that runs in its own thread. If it fails, for example for lack of memory, waiting tests fail with the reason."""

    @functools.wraps(work)
    def watched(services: Services, /, *arguments: P.args, **named: P.kwargs) -> None:
        try:
            work(services, *arguments, **named)
        except BaseException as error:
            services.break_down(error)

    return watched


class Services:
    """The processes of one session: the backend, the taps (proxies that record LLM calls) and the pool (which runs rollouts).

    The constructor starts them in the background.

    1. `_start` boots the backend, starts the parts (`SessionParts`: taps and pool) and builds images, all at the same time. Tests can
       connect to the pool on `port` at once, and wait there. A backend that takes minutes boots only when a test needs it.
    2. When the backend answers, the parts begin to run rollouts, and threads watch the processes. Processes that die are restarted as
       long as that helps.
    3. `finish` ends the rollouts and stops all processes. After it all finished rollouts are in the journal. After `hurry` it does not
       wait for running rollouts.

    `failure` is empty until nothing can run any more (`fail`). The first reason counts, and each waiting test gets it. A thread that
    fails unexpectedly also ends in `fail` or `on_pool_lost`, so that no test waits for ever.

    Messages of the pool arrive in the thread that reads its connection (`on_message`). That thread writes records to the journal
    (`recorder`) and must not block for long, so slow work, such as switching arms, gets its own thread.

    Methods without an underscore may be called from any thread. The parts call those of `Owner` (rollouts/parts/session_parts.py).
    """

    def __init__(
        self,
        backend: Backend,
        directory: Path,
        pool_settings: PoolSettings,
        taps: int,
        budgets: Budgets,
        recorder: RunRecorder,
        log: AttemptLog,
        redactor: Redactor,
        notices: queue.SimpleQueue[str],
        arm_switcher: ArmSwitcher | None = None,
        rounds: Rounds | None = None,
        nodes: SessionNodes | None = None,
        *,
        images: TaskImages,
        insists: bool,
        sample_interval: float | None = None,
    ) -> None:
        """Starts the services in the background.

        `directory` is the folder for logs and samples, and `taps` the number of tap processes. `notices` gets sentences that the user
        should see at once. If the machine lacks something that the backend needs, tests fail if `insists` is set, and are skipped
        otherwise. `sample_interval` is the time between two samples of metrics in seconds; if it is None, the backend decides.
        """
        self.backend, self.directory, self.recorder = backend, directory, recorder
        self.insists, self.arm_switcher, self.rounds, self.images, self.nodes = insists, arm_switcher, rounds, images, nodes
        self._redactor, self.notices, self._sample_interval = redactor, notices, sample_interval
        self.endpoint: Endpoint | None = None
        self.labels = RolloutTally()  # Rollouts announced to and released from the backend; known at the end
        self.unrecorded: int | None = None  # LLM calls that are in no record; None unless the session ended cleanly
        self.leftovers = 0  # Ended processes that agents had left running; known at the end
        self.costs: Json = {}  # process -> CPU seconds and peak memory; known at the end
        self.cpu = CpuWatch()  # CPU use of tap and pool for each second
        self.sampler: Sampler | None = None  # Set when the backend has started; None if it has no metrics
        self.missing = False  # Whether the backend did not start because the machine lacks something
        self.failure = ""  # Reason why nothing can run any more: backend not started, or backend, tap or pool died
        self.boot_began = 0.0  # Start of the boot in seconds, time.monotonic(); 0 before it
        self._connected = threading.Event()  # Set when the pool is connected, or never will be
        self._drained = threading.Event()
        self._switching = threading.Lock()
        self._finishing = False
        self._parts = SessionParts(directory / "backend", pool_settings, taps, budgets, log, self, nodes.terms if nodes else None)
        self._boot = daemon(self._start, name="boot")

    @property
    def port(self) -> int:
        """The TCP port of the pool on 127.0.0.1."""
        return self._parts.port

    @property
    def token(self) -> str:
        return self._parts.token

    @property
    def in_flight(self) -> int:
        """The number of rollouts with a running attempt."""
        return len(self._parts.log.in_flight)

    @property
    def interruptions(self) -> Json:
        """The number of deaths of each process, and of attempts that were repeated because of a death."""
        return {"deaths": dict(self._parts.deaths.counts), "attempts": self._parts.log.state.interruptions}

    @property
    def boot_status(self) -> str:
        """The step that the backend's boot waits for, or the image that is being built. Empty if nothing is waited for."""
        return "" if self.failure else self.images.status or ("" if self.endpoint else self.backend.status)

    def fail(self, reason: str) -> None:
        """Stops running rollouts for good, and fails every waiting test with the reason. The first reason counts."""
        if self._finishing:
            return
        self.failure = self.failure or f"{self._redactor.plain(reason)}{self.recorder.saved_note}"
        self._parts.fail(self.failure, "missing" if self.missing else "infra_error")

    def on_pool_lost(self, reason: str) -> None:
        """Called by `SessionParts` when the pool is lost and no other one will be started. `reason` is empty at the end of the session."""
        if reason and not self._finishing:
            self.failure = self.failure or f"{self._redactor.plain(reason)}{self.recorder.saved_note}"
        self._connected.set()
        self._drained.set()
        if self.rounds is not None:
            self.rounds.end()

    def break_down(self, error: BaseException) -> None:
        """Fails the session because a thread of this class has failed. Otherwise tests would wait for ever for its result."""
        self._parts.break_down(error)

    def check_backend(self) -> None:
        """Checks whether the backend still answers, and tells the user if it does not."""
        if problem := self.backend.look():
            self.notices.put(self._redactor.plain(f"the backend {self.backend.name!r} does not answer: {problem}"))

    def on_pool_died(self) -> None:
        """Called by `SessionParts` when the pool has died, so no rollout runs. Ends the measurement of the current block of rollouts."""
        if self.nodes is not None:
            self.nodes.log.pool_died()
        if self.arm_switcher is not None:
            with self._switching:
                self.arm_switcher.close()

    def processes(self) -> Mapping[str, Child]:
        """Returns the processes of the backend by name."""
        return self.backend.processes

    def unused(self, key: RolloutKey) -> Collection[str]:
        """Returns the names of the backend's processes that a rollout does not use, because they belong to other arms.

        An arm is a setting under comparison.
        """
        return self.backend.unused(arm_of(key.variant))

    def cancel(self, reason: str) -> None:
        """Ends all rollouts, and fails every waiting test with the reason."""
        self._parts.end()
        self._parts.send(protocol.Cancel(reason))

    def hurry(self) -> None:
        """Kills the pool, so that `finish` does not wait for running rollouts."""
        self._finishing = True
        self._parts.end()
        self._parts.abandon("")

    def finish(self) -> None:
        """Ends the rollouts and stops all processes. After it all finished rollouts are in the journal."""
        self._connected.wait(DRAIN)
        self._parts.end()
        if self._parts.send(protocol.EndSession()):
            self._drained.wait(DRAIN)
        hurried, self._finishing = self._finishing, True
        self.recorder.backend_needed.set()  # Ends the wait of a boot that no test needed.
        if self.arm_switcher is not None:
            self.arm_switcher.close()
            if not hurried and not self.failure:
                self.arm_switcher.count_last()
        failures = self.arm_switcher.failures if self.arm_switcher is not None else self.backend.failures
        self.failure = self.failure or self._redactor.plain("; ".join(failures.values()))
        if self.sampler is not None:
            self.sampler.stop()
        self.cpu.stop()
        self.costs = {name: cost for name, child in {**self._parts.children, **self.backend.processes}.items() if (cost := child.cost())}
        stopping = [daemon(child.stop, name="stop") for child in self._parts.stop()]
        self.backend.stop()
        if self.nodes is not None:
            self.nodes.stop()
        self.images.end()
        for thread in stopping:
            thread.join()
        self._boot.join(SETTLE)
        self._parts.log.close()
        self.leftovers += end_marked(SESSION, self._parts.mark)

    @_fails_waiting_tests
    def _start(self) -> None:
        """Starts backend, taps and pool and builds images, all at the same time. If one of these fails, waiting tests get the reason."""
        try:
            booting = daemon(self._start_backend, name="backend")
            self._parts.start()
            if self.nodes is not None and self.nodes.launch is not None:
                self.nodes.launch.start(self.notices.put, self._parts.send, self.fail)
            self.cpu.start(self._parts.children)
            self._connected.set()
            self._make_images()
            booting.join()
        except Exception as error:
            self._connected.set()
            self.fail(f"agentbench cannot run rollouts: {error if isinstance(error, AgentbenchError) else cause(error)}")
            return
        if self.endpoint is None:
            self.fail(self.failure)
            return
        if self.nodes is not None and (problem := self.nodes.problem(self.endpoint)):
            self.notices.put(self._redactor.plain(problem))
        self.recorder.rollouts_begin()
        self.backend.follow(lambda arm, why: self._parts.send(protocol.ArmLost(arm, self._redactor.plain(why))))
        self._parts.begin(self.endpoint, self.images.unbuilt, () if self.nodes is None else self.images.needed)
        daemon(self._watch_backend, name="watch-backend")

    def _make_images(self) -> None:
        """Builds the images of the planned tasks while the backend boots, so that no build disturbs running rollouts.

        If node workers run the rollouts, only waits for the plan, because each node builds the images itself.
        """
        if self.images.tasks:
            self.recorder.backend_needed.wait()
            self.boot_began = self.boot_began or time.monotonic()
            if not self._finishing and self.nodes is None:
                self.images.make(self.images.needed)

    def _start_backend(self) -> None:
        (logs := self.directory / "backend").mkdir(exist_ok=True)
        try:
            if self.backend.waits:
                self.recorder.backend_needed.wait()  # A stack removes leftovers of other sessions itself before it boots.
            else:
                end_orphans(self.notices.put)
            if not self._finishing:
                self.boot_began = time.monotonic()
                endpoint = self.backend.start(logs)
                self._start_sampler()
                self.endpoint = endpoint
        except Exception as error:  # A backend may come from a hook.
            if self._finishing:
                return  # It was stopped while it started.
            fault = f"is not available: {error}" if isinstance(error, AgentbenchError) else f"failed to start: {cause(error)}"
            self.failure = self.failure or self._redactor.plain(f"the backend {self.backend.name!r} {fault}")
            self.missing = isinstance(error, MissingError) and not self.insists

    def _start_sampler(self) -> None:
        if self.sampler is not None:
            self.sampler.stop()
        sources = self.backend.metrics()
        if not sources.are_empty and not self._finishing:
            self.sampler = Sampler(replace(sources, every_s=self._sample_interval or sources.every_s), self.directory / SAMPLES)
            self.sampler.start()

    @_fails_waiting_tests
    def _watch_backend(self) -> None:
        tell = functools.partial(self._parts.report_unavailable, "backend")
        while died := self.backend.watch(tell):
            try:
                endpoint = self.backend.boot_again(tell)
            except AgentbenchError as error:
                died, endpoint = f"{died}\n{error}", None
            if endpoint is None:
                self.fail(f"the backend {self.backend.name!r} is gone: {died}")
                return
            self.endpoint = endpoint
            self._start_sampler()
            self._parts.move(endpoint)
            tell(())

    @_fails_waiting_tests
    def _prepare_block(self, pool: PoolProcess, arm: str, rollouts: int) -> None:
        """Prepares an arm (a setting under comparison) for a block of its rollouts, and tells the pool whether they can start."""
        assert self.arm_switcher is not None and self.endpoint is not None
        with self._switching:
            if self.sampler is not None and self.arm_switcher.stops_an_arm(arm):
                self.sampler.stop()  # Its last samples have all calls of the arm that ends now.
            try:
                answer, swapped = self.arm_switcher.begin(self.endpoint, arm, rollouts)
            except Exception as error:  # A backend may come from a hook.
                answer, swapped = protocol.NoTurn(f"arm {arm} cannot run: {cause(error)}"), False
            if swapped and self.sampler is not None:
                self._start_sampler()
        plain = protocol.NoTurn(self._redactor.plain(answer.reason)) if isinstance(answer, protocol.NoTurn) else answer
        self._parts.answer_turn(pool, plain)

    @_fails_waiting_tests
    def _on_round_finished(self, whole: bool) -> None:
        if self.rounds is not None and (following := self.rounds.round_finished(whole=whole)):
            self._add(following)
            self._parts.add_round(following, tell=True)

    def _add(self, keys: Sequence[RolloutKey]) -> None:
        self.recorder.added(len(keys), len(self.recorder.kept.keys() & set(keys)))

    def on_message(self, pool: PoolProcess, message: protocol.SessionNote | protocol.SessionQuestion, body: bytes) -> None:
        """Handles a message of the pool: a note, which needs no answer, or a question, which is answered."""
        match message:
            case PrepareBlock(arm, rollouts):  # In a thread: an arm may take minutes to load, and tests need records meanwhile.
                daemon(self._prepare_block, pool, arm, rollouts, name="turn")
            case protocol.PlanSettled(whole):
                self._parts.add_round((), tell=False)
                daemon(self._on_round_finished, whole, name="look")
            case protocol.ShowUser(sentence):
                self.notices.put(self._redactor.plain(sentence))
            case NodeRecord() | NodeCpu():
                assert self.nodes is not None
                self.nodes.log.append(message)
            case protocol.StartBackend():
                self.recorder.backend_needed.set()
            case protocol.Drained(tally, leftovers):
                self.labels, self.unrecorded, self.leftovers = tally, self._parts.log.state.unrecorded, leftovers
                self._drained.set()
            case _:
                pool.send(*self._answer(message, body))

    def _answer(self, question: protocol.SessionQuestion, body: bytes) -> tuple[protocol.ControllerAnswer, bytes]:
        """Returns the answer to a question of the pool, and the answer's body (a record, or nothing)."""
        try:
            match question:
                case protocol.PlanMade():
                    return self._plan(question), b""
                case protocol.RolloutFinished():
                    self._parts.log.mark_over(question.key)
                    had_space = not self.recorder.messages.is_full
                    line = self.recorder.finished(question, body)
                    if had_space and self.recorder.messages.is_full:
                        self.notices.put(f"{MESSAGES} has reached its largest size; it gets no further requests and replies")
                    self._parts.ended(question.key, question.calls, question.kind)
                    return protocol.RecordLine(), line
                case protocol.GetRecord(key):
                    return protocol.RecordLine(), self.recorder.recorded(key)
                case protocol.BlockBegun(primed):
                    assert self.arm_switcher is not None
                    self.arm_switcher.measure(primed)
                    return protocol.BlockNoted(), b""
                case protocol.BlockEnded():
                    assert self.arm_switcher is not None
                    self.arm_switcher.close()
                    return protocol.BlockNoted(), b""
                case _:
                    assert_never(question)
        except Exception as error:  # The disk or a user's hook failed; the error must reach the waiting test.
            return protocol.QuestionFailed(cause(error)), b""

    def _plan(self, plan: protocol.PlanMade) -> protocol.PlanTaken:
        """Records the planned rollouts. Returns the rollouts that run in addition (the second trial round)."""
        self._parts.log.append(RolloutsPlanned(plan.keys))
        self.images.planned = plan.keys
        self.recorder.planned(len(set(plan.keys)), plan.stored, plan.selected)
        if self.rounds is None:
            return protocol.PlanTaken(())
        extra = tuple(self.rounds.planned(plan.keys))
        self._add(extra)
        self._parts.add_round(extra, tell=False)
        return protocol.PlanTaken(extra)
