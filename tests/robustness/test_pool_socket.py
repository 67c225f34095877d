"""The pool over its socket: whom it answers, and that nothing said to it leaves anybody waiting."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.lib import wire
from pytest_agentbench.lib.process import Child
from pytest_agentbench.records import Json, RolloutKey
from pytest_agentbench.suites.folder import load_suite
from tests.project import Project
from tests.rollouts.pool.test_server import NEW_RUN, NOTED

pytestmark = pytest.mark.slow

TOKEN = "the-token-of-this-session"
KEY = RolloutKey("shop", "shop-0")
PATIENCE = 20  # seconds until an answer that does not come fails the test


class PoolProcess:
    """A pool as a controller starts it, and lines to it."""

    def __init__(self, suites: Json, log: Path) -> None:
        scheduling = {"concurrency": 8, "retries": 0, "keep_order": False, "durations": {}}
        with socket.create_server(("127.0.0.1", 0)) as listener, Path(os.devnull).open("wb") as pipe:
            self.port: int = listener.getsockname()[1]
            code = {"suites": suites, "sys_path": sys.path, "log_level": "info"}
            config = {**code, "run": "test", "sandboxes": 2, "time_limit": None, "budget": None, "sizes": {}, "scheduling": scheduling}
            line = {**NEW_RUN, **config, "token": TOKEN, "listener": listener.fileno(), "controller_pipe": pipe.fileno()}
            self.child = Child("pytest_agentbench.rollouts.pool", line, log, pass_fds=(listener.fileno(), pipe.fileno()))
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
    with closing(PoolProcess({suite.name: suite.for_pool()}, tmp_path / "pool.log")) as process:
        yield process


def heard(controller: socket.socket) -> Json:
    """The next thing that the pool wants of its controller; nothing has died, whenever it asks."""
    while True:
        message: Json = wire.receive(controller)[0]
        if message["op"] not in NOTED:
            return message
        if message["op"] == "look":
            wire.send(controller, {"op": "looked"})


def asked(line: socket.socket, **question: Any) -> wire.Frame:
    wire.send(line, question)
    return wire.receive(line)


def test_only_the_session_is_answered(pool: PoolProcess) -> None:
    """A wrong token, no token and what is no frame are closed without a word, and the session's own tests go on."""
    stranger = pool.connect(token="guessed")
    with pytest.raises(ConnectionError):
        asked(stranger, op="backend")

    for first_bytes in (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", wire.pack({}), b"\0\0\0\x02\0\0\0\0[]", b"\0\0\0\x02\0\0\0\0{{"):
        nobody = socket.create_connection(("127.0.0.1", pool.port), timeout=PATIENCE)
        with nobody:
            nobody.sendall(first_bytes)

            assert b"" == nobody.recv(1)

    assert "does not know" in asked(pool.connect(), op="make coffee")[0]["reason"]


def test_it_waits_until_it_is_ended(pool: PoolProcess) -> None:
    """Drained, it is still there to be asked what it has cost; it leaves when its stdin is closed."""
    controller = pool.connect("controller")
    wire.send(controller, {"op": "finish"})
    while heard(controller)["op"] != "drained":
        pass
    with pytest.raises(subprocess.TimeoutExpired):
        pool.child.process.wait(1)

    cost = pool.child.cost()

    assert cost is not None
    assert cost["peak_mib"] > 0
    pool.child.stop()
    assert 0 == pool.child.process.returncode


@pytest.mark.parametrize("size", [4097, 1 << 29])
def test_a_long_introduction(pool: PoolProcess, size: int) -> None:
    """Who has not said who it is and announces more than 4 KiB is hung up on before any of it comes."""
    with socket.create_connection(("127.0.0.1", pool.port), timeout=PATIENCE) as stranger:
        stranger.sendall(struct.pack("!II", size, 0))

        assert b"" == stranger.recv(1)


def test_a_question_it_cannot_answer_gets_a_reason(pool: PoolProcess) -> None:
    """Unknown operations and questions that fail are answered with what is wrong, and the line stays usable."""
    line = pool.connect()

    assert "make coffee" in asked(line, op="make coffee")[0]["reason"]

    for question in ({"op": "rollout"}, {"op": "scenario", "key": ["shop", "no such"]}, {"op": "close", "id": "never opened"}, {}):
        answer, body = asked(line, **question)

        assert ("infra_error", b"") == (answer["status"], body)
        assert answer["reason"]

    assert b'"id":"shop-0"' in asked(line, op="scenario", key=KEY)[1]


def test_takes_a_plan_of_ten_thousand(pool: PoolProcess) -> None:
    """A plan larger than 64 KiB arrives whole; the first plan wins, and each rollout in it counts once."""
    controller, first, second = pool.connect("controller"), pool.connect(), pool.connect()
    keys = [RolloutKey("shop", f"shop-{number}-{'x' * 20}") for number in range(10_000)]

    wire.send(first, {"op": "plan", "keys": [*keys, *keys[:5]], "selected": {"shop": 10_005}})

    wanted = [[*key] for key in (*keys, *keys[:5])]
    assert {"op": "plan", "keys": wanted, "selected": {"shop": 10_005}, "stored": 0} == heard(controller)

    wire.send(controller, {"op": "reply"})

    assert ({}, b"") == wire.receive(first)
    assert ({}, b"") == asked(second, op="plan", keys=keys[:1], selected={"shop": 1})


def test_a_plan_that_comes_after_the_failure_is_answered(pool: PoolProcess) -> None:
    """When the backend is gone before the tests are known, each of them is told so; none waits for a rollout that cannot run."""
    controller, line = pool.connect("controller"), pool.connect()
    wire.send(controller, {"op": "failed", "reason": "the backend is gone", "status": "infra_error"})

    assert {"endpoint": None, "reason": "the backend is gone", "status": "infra_error"} == asked(line, op="backend")[0]

    wire.send(line, {"op": "plan", "keys": [KEY], "selected": {"shop": 1}})
    heard(controller)
    wire.send(controller, {"op": "reply"})
    wire.receive(line)

    for key in (KEY, RolloutKey("shop", "shop-1")):
        answer, _ = asked(line, op="rollout", key=key)

        assert ("infra_error", "the backend is gone") == (answer["status"], answer["reason"])


def test_a_tap_that_is_away(pool: PoolProcess) -> None:
    """Rollouts wait for a tap that is not there until the controller says what becomes of it."""
    controller, line = pool.connect("controller"), pool.connect()
    endpoint, taps = {"url": "http://127.0.0.1:1/v1", "model": "m"}, {"control_ports": [1], "port": 1, "token": ""}
    wire.send(controller, {"op": "start", "endpoint": endpoint, "taps": taps, "elapsed_s": 0.0, "unbuilt": {}})
    wire.send(line, {"op": "rollout", "key": KEY})
    wire.send(controller, {"op": "failed", "reason": "the tap is gone", "status": "infra_error"})
    answer = wire.receive(line)[0]

    assert ("infra_error", "the tap is gone") == (answer["status"], answer["reason"])


def test_the_end_of_the_controllers_line_ends_nothing_else(pool: PoolProcess) -> None:
    """Tests keep their lines and get answers; what needed the controller says that it is gone."""
    controller, line = pool.connect("controller"), pool.connect()
    wire.send(line, {"op": "plan", "keys": [KEY], "selected": {"shop": 1}})
    heard(controller)
    controller.close()
    answer, _ = wire.receive(line)

    assert ("infra_error", True) == (answer["status"], "controller" in answer["reason"])
    assert "infra_error" == asked(line, op="plan", keys=[KEY], selected={})[0].get("status", "infra_error")
    assert b'"id":"shop-0"' in asked(pool.connect(), op="scenario", key=KEY)[1]
    assert pool.child.process.poll() is None


def test_ends_with_its_stdin(pool: PoolProcess) -> None:
    """When the controller dies its pipe closes, and the pool leaves, whatever lines are open."""
    controller, line = pool.connect("controller"), pool.connect()
    wire.send(line, {"op": "rollout", "key": KEY})
    assert pool.child.process.stdin is not None
    pool.child.process.stdin.close()

    assert 0 == pool.child.process.wait(PATIENCE)

    for each in (controller, line):
        with pytest.raises(ConnectionError):
            wire.receive(each)
