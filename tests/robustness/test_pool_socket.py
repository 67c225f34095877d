"""The pool's socket: only the session's own clients get answers, and no message leaves a client waiting."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pytest_agentbench.lib import wire
from pytest_agentbench.lib.process import Child
from pytest_agentbench.records import Endpoint, RolloutKey
from pytest_agentbench.rollouts import protocol
from pytest_agentbench.rollouts.inline_protocol import ReturnAddress
from pytest_agentbench.rollouts.protocol import PoolConfig, Scheduling
from pytest_agentbench.rollouts.questions_of_tests import (
    FoundScenario,
    GetBackend,
    GetRollout,
    GetScenario,
    PlanAccepted,
    PlanSelected,
    PoolAnswer_co,
    PoolQuestion,
    QuestionRefused,
    UnrecordedRollout,
    read_answer,
)
from pytest_agentbench.runs.attempts import PoolEntry
from pytest_agentbench.suites.folder import load_suite
from pytest_agentbench.suites.suite import Suite
from pytest_agentbench.tap.protocol import TapPorts
from tests.project import Project
from tests.rollouts.pool.test_server import empty_run, pool_settings

pytestmark = pytest.mark.slow

TOKEN = "the-token-of-this-session"
KEY = RolloutKey("shop", "shop-0")
PLAN = PlanSelected((KEY,), {"shop": 1})
PATIENCE = 20  # Seconds until a missing answer fails the test.


class PoolProcess:
    """A pool as a controller starts it, and connections to it."""

    def __init__(self, suite: Suite, log: Path) -> None:
        settings = pool_settings(suite, scheduling=Scheduling(concurrency=8, retries=0, keep_order=False, durations={}))
        with socket.create_server(("127.0.0.1", 0)) as listener, Path(os.devnull).open("wb") as pipe:
            self.port: int = listener.getsockname()[1]
            config = PoolConfig(TOKEN, listener.fileno(), pipe.fileno(), settings, 1, empty_run(log.parent / "run"), 0)
            self.child = Child("pytest_agentbench.rollouts.pool", config, log, pass_fds=(listener.fileno(), pipe.fileno()))
        self.lines: list[socket.socket] = []

    def connect(self, role: str = "test", token: str = TOKEN) -> socket.socket:
        connection = wire.connect(self.port, token, role)
        connection.settimeout(PATIENCE)
        self.lines.append(connection)
        return connection

    def close(self) -> None:
        for line in self.lines:
            line.close()
        self.child.stop()


@pytest.fixture
def pool(project: Project, tmp_path: Path) -> Iterator[PoolProcess]:
    suite = load_suite(project.suite(scenarios=2))
    with closing(PoolProcess(suite, tmp_path / "pool.log")) as process:
        yield process


def heard(controller: socket.socket) -> protocol.ToController:
    """Returns the pool's next message to its controller. Answers its questions about dead processes with none."""
    while True:
        match message := protocol.TO_CONTROLLER.read(wire.receive(controller)[0]):
            case protocol.CheckProcesses():
                wire.send(controller, protocol.ProcessesChecked())
            case _ if not isinstance(message, PoolEntry):
                return message


def answer_to(question: PoolQuestion[PoolAnswer_co], line: socket.socket) -> PoolAnswer_co | QuestionRefused:
    """Reads the answer to a question that has been sent."""
    return read_answer(question, wire.receive(line)[0])


def asked(line: socket.socket, question: PoolQuestion[PoolAnswer_co]) -> PoolAnswer_co | QuestionRefused:
    wire.send(line, question)
    return answer_to(question, line)


def shop_scenario(line: socket.socket) -> object:
    """Returns the id of the scenario that a test process gets."""
    answer = asked(line, GetScenario(KEY))
    assert isinstance(answer, FoundScenario)
    return answer.scenario["id"]


def refused(answer: object) -> QuestionRefused:
    assert isinstance(answer, QuestionRefused)
    return answer


def test_only_clients_of_the_session_get_answers(pool: PoolProcess) -> None:
    """A connection with a wrong token, no token or an invalid frame is closed without an answer, and the session's own connections still
    work.
    """
    stranger = pool.connect(token="guessed")
    with pytest.raises(ConnectionError):
        asked(stranger, GetBackend())

    for first_bytes in (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", wire.framed({}), b"\0\0\0\x02\0\0\0\0[]", b"\0\0\0\x02\0\0\0\0{{"):
        nobody = socket.create_connection(("127.0.0.1", pool.port), timeout=PATIENCE)
        with nobody:
            nobody.sendall(first_bytes)

            assert b"" == nobody.recv(1)

    assert "shop-0" == shop_scenario(pool.connect())


def test_the_drained_pool_waits_for_its_end(pool: PoolProcess) -> None:
    """After it is drained, the pool can still report its cost. It ends when its stdin is closed."""
    controller = pool.connect("controller")
    wire.send(controller, protocol.EndSession())
    assert isinstance(heard(controller), protocol.Drained)
    with pytest.raises(subprocess.TimeoutExpired):
        pool.child.process.wait(1)

    cost = pool.child.cost()

    assert cost is not None
    assert cost["peak_mib"] > 0
    pool.child.stop()
    assert 0 == pool.child.process.returncode


@pytest.mark.parametrize("size", [4097, 1 << 29])
def test_a_long_introduction(pool: PoolProcess, size: int) -> None:
    """A connection that announces an introduction of more than 4 KiB is closed before it is read."""
    with socket.create_connection(("127.0.0.1", pool.port), timeout=PATIENCE) as stranger:
        stranger.sendall(struct.pack("!II", size, 0))

        assert b"" == stranger.recv(1)


def test_a_question_that_cannot_be_answered(pool: PoolProcess) -> None:
    """Unknown and failing questions are answered with a reason, and the connection remains usable."""
    line = pool.connect()
    unreadable: tuple[object, ...] = ({}, ["MakeCoffee", {}], ["GetRollout", {}])
    for header in unreadable:
        wire.send(line, header)
        answer = refused(answer_to(GetBackend(), line))

        assert ("infra_error", True) == (answer.status, bool(answer.reason))

    assert "the pool failed on GetScenario" in refused(asked(line, GetScenario(RolloutKey("shop", "no such")))).reason
    assert "infra_error" == refused(asked(line, ReturnAddress("never opened"))).status
    assert "shop-0" == shop_scenario(line)


def test_takes_a_plan_of_ten_thousand(pool: PoolProcess) -> None:
    """A plan larger than 64 KiB arrives completely. Only the first plan counts, and each rollout in it counts once."""
    controller, first, second = pool.connect("controller"), pool.connect(), pool.connect()
    keys = [RolloutKey("shop", f"shop-{number}-{'x' * 20}") for number in range(10_000)]

    plan = PlanSelected((*keys, *keys[:5]), {"shop": 10_005})
    wire.send(first, plan)

    assert protocol.PlanMade(plan.keys, 0, {"shop": 10_005}) == heard(controller)

    wire.send(controller, protocol.PlanTaken(()))

    assert PlanAccepted() == answer_to(plan, first)
    assert PlanAccepted() == asked(second, PlanSelected((keys[0],), {"shop": 1}))


def test_a_plan_after_the_failure(pool: PoolProcess) -> None:
    """If the backend fails before the tests are known, each question gets that reason, and no test waits for a rollout that cannot run."""
    controller, line = pool.connect("controller"), pool.connect()
    wire.send(controller, protocol.NothingRuns("the backend is gone", "infra_error"))

    assert QuestionRefused("the backend is gone", "infra_error") == asked(line, GetBackend())

    wire.send(line, PLAN)
    heard(controller)
    wire.send(controller, protocol.PlanTaken(()))
    assert PlanAccepted() == answer_to(PLAN, line)

    for key in (KEY, RolloutKey("shop", "shop-1")):
        assert UnrecordedRollout("infra_error", "the backend is gone", None, over=False) == asked(line, GetRollout(key))


def test_a_missing_tap(pool: PoolProcess) -> None:
    """If the tap is missing, rollouts wait until the controller reports that it is gone."""
    controller, line = pool.connect("controller"), pool.connect()
    wire.send(controller, protocol.Start(Endpoint("http://127.0.0.1:1/v1", "m"), (), TapPorts(1, (1,), ""), 0.0, {}))
    wire.send(line, GetRollout(KEY))
    wire.send(controller, protocol.NothingRuns("the tap is gone", "infra_error"))

    assert UnrecordedRollout("infra_error", "the tap is gone", None, over=False) == answer_to(GetRollout(KEY), line)


def test_the_controllers_connection_ends(pool: PoolProcess) -> None:
    """If the controller's connection ends, tests keep theirs and get answers. Questions that need the controller get a reason."""
    controller, line = pool.connect("controller"), pool.connect()
    wire.send(line, PLAN)
    heard(controller)
    controller.close()

    assert QuestionRefused("the connection to the controller is closed", "infra_error") == answer_to(PLAN, line)
    assert PlanAccepted() == asked(line, PLAN)
    assert "shop-0" == shop_scenario(pool.connect())
    assert pool.child.process.poll() is None


def test_ends_with_its_stdin(pool: PoolProcess) -> None:
    """If the controller dies, its pipe closes, and the pool ends even if connections are open."""
    controller, line = pool.connect("controller"), pool.connect()
    wire.send(line, GetRollout(KEY))
    assert pool.child.process.stdin is not None
    pool.child.process.stdin.close()

    assert 0 == pool.child.process.wait(PATIENCE)

    for each in (controller, line):
        with pytest.raises(ConnectionError):
            wire.receive(each)
