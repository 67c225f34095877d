"""Runs a session's pool and taps without pytest, with an owner that answers the pool and a client like a test process."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_agentbench.lib import wire
from pytest_agentbench.lib.process import Child
from pytest_agentbench.records import Endpoint, Json, Rollout, RolloutKey
from pytest_agentbench.rollouts import protocol
from pytest_agentbench.rollouts.parts.pool_and_tap_processes import PoolProcess
from pytest_agentbench.rollouts.parts.session_parts import SessionParts
from pytest_agentbench.rollouts.protocol import PoolSettings
from pytest_agentbench.rollouts.questions_of_tests import (
    GetRollout,
    PlanAccepted,
    PlanSelected,
    PoolAnswer_co,
    PoolQuestion,
    QuestionRefused,
    RecordedRollout,
    read_answer,
)
from pytest_agentbench.runs.attempts import AttemptLog, PrepareBlock, RolloutsPlanned
from pytest_agentbench.runs.journal import Journal, read_journal, rollout_of
from pytest_agentbench.suites.suite import Scenario, Suite
from pytest_agentbench.tap.protocol import Budgets
from tests.rollouts.pool.test_server import empty_run, pool_settings, shop
from tests.waits import wait_for

PATIENCE = 30.0  # seconds to wait for an answer before the test fails
MODEL = "embedded-lexical"
ANSWER: Json = {"text": "Here is what was found for you."}

A, B, C = (RolloutKey("shop", f"s-{number}") for number in range(3))


def small_suite(folder: Path, **changes: Any) -> Suite:
    """Returns a suite of three scenarios whose questions contain their ids, so that script rules can match them."""
    scenarios = tuple(Scenario(key.scenario, ({"role": "user", "content": f"Customer {key.scenario}: a lamp?"},)) for key in (A, B, C))
    return replace(shop(), folder=folder, scenarios=scenarios, scorers={}, **changes)


def stalled(key: RolloutKey, call: int) -> Json:
    """Returns a script rule: the answer to this call of a rollout never ends. Calls are counted from 1 over all attempts."""
    match = {"contains": f"Customer {key.scenario}:", "call": call}
    return {"match": match, "text": "This takes its time.", "stall": {"after": 1, "ms": 600_000}}


class Owner:
    """Answers the pool and writes the journal like `session/processes.Services`, and records what it is told."""

    def __init__(self, directory: Path) -> None:
        self.journal = Journal(directory)
        self.notes: list[protocol.SessionNote | protocol.SessionQuestion] = []
        self.failures: list[str] = []
        self.losses: list[str] = []
        self.turns: list[protocol.Turn | protocol.NoTurn] = []  # answers to `PrepareBlock`, the next one first
        self.looks = 0
        self.parts: SessionParts  # set if there are any

    def on_message(self, pool: PoolProcess, message: protocol.SessionNote | protocol.SessionQuestion, body: bytes) -> None:
        self.notes.append(message)
        match message:
            case protocol.PlanMade(keys):
                self.parts.log.append(RolloutsPlanned(keys))
                pool.send(protocol.PlanTaken(()))
            case protocol.RolloutFinished(key):
                self.parts.log.mark_over(key)
                self.journal.append(key, body)
                self.parts.ended(key, message.calls, message.kind)
                pool.send(protocol.RecordLine(), body)
            case protocol.GetRecord(key):
                pool.send(protocol.RecordLine(), self.journal.line(key))
            case protocol.BlockBegun() | protocol.BlockEnded():
                pool.send(protocol.BlockNoted())
            case PrepareBlock():
                self.parts.answer_turn(pool, self.turns.pop(0))
            case protocol.PlanSettled():
                self.parts.add_round((), tell=False)

    def fail(self, reason: str) -> None:
        self.failures.append(reason)
        self.parts.fail(reason, "infra_error")

    def on_pool_lost(self, reason: str) -> None:
        self.losses.append(reason)

    def check_backend(self) -> None:
        self.looks += 1

    def on_pool_died(self) -> None:
        """Does nothing, because nothing is measured here."""

    def processes(self) -> Mapping[str, Child]:
        return {}

    def unused(self, key: RolloutKey) -> Collection[str]:
        del key
        return ()


@dataclass
class PoolClient:
    """The connection of a test process to the pool. If a pool dies during a question, the question is sent to the next one."""

    port: int
    token: str
    _socket: socket.socket | None = field(default=None, repr=False)

    def send(self, question: PoolQuestion[PoolAnswer_co]) -> None:
        """Sends a question. `receive` returns its answer."""
        if self._socket is None:
            self._socket = wire.connect(self.port, self.token, "test")
            self._socket.settimeout(PATIENCE)
        wire.send(self._socket, question)

    def receive(self, question: PoolQuestion[PoolAnswer_co]) -> tuple[PoolAnswer_co | QuestionRefused, bytes]:
        """Returns the answer to a question that was sent. Raises ConnectionError if the pool dies before it answers."""
        assert self._socket is not None
        header, body = wire.receive(self._socket)
        return read_answer(question, header), body

    def ask(self, question: PoolQuestion[PoolAnswer_co]) -> tuple[PoolAnswer_co | QuestionRefused, bytes]:
        """Sends a question and returns the answer. Raises ConnectionRefusedError if there is no pool and none will be started."""
        for _ in range(10):
            try:
                self.send(question)
                return self.receive(question)
            except ConnectionRefusedError:
                raise
            except ConnectionError:
                self.close()
        raise AssertionError(f"ten pools died over {question}")

    def plan(self, *keys: RolloutKey) -> None:
        """Plans rollouts, each for one test."""
        assert (PlanAccepted(), b"") == self.ask(PlanSelected(keys, {"shop": len(keys)}))

    def read(self, key: RolloutKey) -> Rollout:
        """Returns a recorded rollout."""
        answer, line = self.ask(GetRollout(key))
        assert isinstance(answer, RecordedRollout), answer
        return rollout_of(line)

    def close(self) -> None:
        """Closes the connection. A later question opens a new one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


@dataclass
class RunningParts:
    """The parts of a session, with helpers for tests."""

    directory: Path  # directory of the run
    logs: Path
    parts: SessionParts
    owner: Owner
    test: PoolClient

    def begin(self, url: str, **facts: Any) -> None:
        """Begins with a backend at this URL, given without /v1."""
        self.parts.begin(Endpoint(f"{url}/v1", MODEL, **facts), {})

    def kill(self, *names: str) -> None:
        """Kills parts at the same moment, and waits until each was started again."""
        for name, child in self.killed(*names).items():
            wait_for(lambda name=name, child=child: self.parts.children[name] is not child, f"the next {name}")  # type: ignore[misc]

    def killed(self, *names: str) -> dict[str, Child]:
        """Kills parts and returns their processes."""
        children = {name: self.parts.children[name] for name in names}
        for child in children.values():
            os.kill(child.process.pid, signal.SIGKILL)
        return children

    def in_flight(self, *keys: RolloutKey, request_log: Path | None = None, requests: int = 0) -> None:
        """Waits until these rollouts are in flight, and until the engine has written so many requests to `request_log`."""
        wait_for(lambda: self.parts.log.in_flight == {*keys}, f"attempts of {keys}")
        if request_log is not None:
            wait_for(lambda: len(request_log.read_text().splitlines()) >= requests, f"{requests} requests")

    @property
    def recorded(self) -> list[tuple[RolloutKey, str]]:
        """Returns the rollouts in the journal with their statuses, sorted."""
        return sorted((rollout.key, rollout.status) for rollout in read_journal(self.directory))

    @property
    def lines(self) -> int:
        """Returns the lines of the journal."""
        return len(self.owner.journal.path.read_bytes().splitlines())


@contextmanager
def running_parts(
    folder: Path, settings: PoolSettings | None = None, *, taps: int = 1, owner: type[Owner] = Owner, start: bool = True
) -> Iterator[RunningParts]:
    """Starts the parts of a session without a backend. All their processes end with the block."""
    directory, logs = empty_run(folder / "run"), folder / "logs"
    sentences: list[str] = []
    log, owns = AttemptLog(directory, 1, str, sentences.append), owner(directory)
    parts = owns.parts = SessionParts(logs, settings or pool_settings(small_suite(folder)), taps, Budgets(), log, owns)
    running = RunningParts(directory, logs, parts, owns, PoolClient(parts.port, parts.token))
    try:
        if start:
            parts.start()
        yield running
    finally:
        running.test.close()
        for child in parts.stop():
            child.process.kill()
            child.stop()
        if "pool" in parts.children:
            wait_for(lambda: owns.losses, "the end of the pool to be noticed")
        owns.journal.close()
        log.close()
    assert [] == sentences
