"""The connection of a test process to the pool: answers, refusals, pools that die, and pools of another version."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from pytest_agentbench.errors import InfraError, MissingError
from pytest_agentbench.lib import wire
from pytest_agentbench.lib.wire import Refused
from pytest_agentbench.records import Endpoint
from pytest_agentbench.rollouts.questions_of_tests import BackendReady, GetBackend, PlanAccepted, PoolAddress, QuestionRefused
from pytest_agentbench.session.pool_connection import PoolConnection, PoolLost

READY = BackendReady(Endpoint("http://127.0.0.1:9/v1", "m"))
Answering = Callable[[socket.socket, int], None]  # handles an accepted connection; gets its number


@contextmanager
def pool(answering: Answering) -> Iterator[PoolConnection]:
    """A connection to a server that calls `answering` for each of its connections and then closes it."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for number in range(1000):
            try:
                accepted, _ = listener.accept()
            except OSError:  # The test has ended.
                return
            with accepted, suppress(OSError):
                wire.receive(accepted)
                answering(accepted, number)

    thread = threading.Thread(target=serve)
    thread.start()
    connection = PoolConnection(PoolAddress(listener.getsockname()[1], "token"), lambda: "")
    try:
        yield connection
    finally:
        connection.close()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def answers(*messages: object) -> Answering:
    """Answers one question after the other."""

    def answering(accepted: socket.socket, _: int) -> None:
        for message in messages:
            wire.receive(accepted)
            accepted.sendall(wire.framed(message, b"body") if isinstance(message, dict) else wire.pack(message, b"body"))

    return answering


def test_an_answer() -> None:
    """`ask` returns the answer and its body, and the next question uses the same connection."""
    with pool(answers(READY, READY)) as connection:
        assert [(READY, b"body")] * 2 == [connection.ask(GetBackend()) for _ in range(2)]


@pytest.mark.parametrize(("status", "error"), [("infra_error", InfraError), ("cancelled", InfraError), ("missing", MissingError)])
def test_a_refusal(status: str, error: type[Exception]) -> None:
    """A refusal raises an error with its reason, and the connection stays usable."""
    with pool(answers(QuestionRefused("no GPU", status), READY)) as connection:
        with pytest.raises(error, match=r"^no GPU$") as raised:
            connection.ask(GetBackend())

        assert not isinstance(raised.value, PoolLost)
        assert READY == connection.ask(GetBackend())[0]


def test_an_answer_that_cannot_be_read() -> None:
    """An invalid answer fails the test that asked, and no other test."""
    with pool(answers(PlanAccepted(), {"op": "backend"}, READY)) as connection:
        for sentence in (r"'PlanAccepted' is unknown", r"is not a message"):
            with pytest.raises(InfraError, match=rf"^the pool's answer to GetBackend cannot be read: .*{sentence}") as raised:
                connection.ask(GetBackend())
            assert not isinstance(raised.value, PoolLost)

        assert READY == connection.ask(GetBackend())[0]


def test_pools_that_die() -> None:
    """If a pool closes the connection without an answer, the question goes to the next pool."""

    def answering(accepted: socket.socket, number: int) -> None:
        if number < 3:
            wire.receive(accepted)
        else:
            answers(READY)(accepted, number)

    with pool(answering) as connection:
        assert READY == connection.ask(GetBackend())[0]


@pytest.mark.parametrize("waits", [True, False])
def test_a_pool_of_another_version(waits: bool) -> None:
    """A pool of another version is not asked again, even if it closes the connection before the question is sent."""
    accepted_connections: list[int] = []

    def answering(accepted: socket.socket, number: int) -> None:
        accepted_connections.append(number)
        if waits:
            wire.receive(accepted)
        wire.send(accepted, Refused("both need the same version"))

    with pool(answering) as connection, pytest.raises(PoolLost, match=r"^both need the same version$"):
        connection.ask(GetBackend())

    assert [0] == accepted_connections


@pytest.mark.parametrize("failure", ["", "the pool ended with exit code 1"])
def test_no_pool(failure: str) -> None:
    """Without a pool each question fails at once, with the failure of the session's services if this process knows it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    connection = PoolConnection(PoolAddress(port, "token"), lambda: failure)
    sentence = failure or r"the pool is gone \(.*refused\); see backend/pool.log in the run directory"

    with pytest.raises(PoolLost, match=rf"^{sentence}$"):
        connection.ask(GetBackend())
