"""The supervisor of a node worker with a session that a test plays: what it answers, and how it ends."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.lib import wire
from pytest_agentbench.lib.threads import daemon
from pytest_agentbench.lib.wire import Hello, Refused
from pytest_agentbench.rollouts.nodes import suite_files
from pytest_agentbench.rollouts.nodes.connection import SILENCE
from pytest_agentbench.rollouts.nodes.membership import LOST, OVER, REFUSED, JoinTerms
from pytest_agentbench.rollouts.nodes.protocol import FROM_NODE, ROLE, Bye, Join, Leaving, NotAdmitted, Tick, Tock, Welcome
from pytest_agentbench.rollouts.nodes.supervisor import Supervisor
from pytest_agentbench.suites.suite import DatasetInfo, Scenario, Suite
from pytest_agentbench.tap.protocol import Budgets
from tests.rollouts.pool.test_server import pool_settings

pytestmark = pytest.mark.timeout(60)


class PlayedSession:
    """The pool's side of connections of a node worker, one after the other."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.port = listener.getsockname()[1]
        self._connection: socket.socket | None = None

    def accept(self) -> Join:
        """Waits for the next connection. Returns its `Join`."""
        self.close()
        self._connection, _ = self._listener.accept()
        header, _ = wire.receive(self._connection)
        assert ["Hello", {"token": "t", "role": ROLE, "protocol": Hello("t", ROLE).protocol}] == header
        join = self.next()
        assert isinstance(join, Join)
        return join

    def next(self) -> Any:
        assert self._connection is not None
        return FROM_NODE.read(wire.receive(self._connection)[0])

    def send(self, message: Any, body: bytes = b"") -> None:
        assert self._connection is not None
        wire.send(self._connection, message, body)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@pytest.fixture
def session() -> Iterator[PlayedSession]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        played = PlayedSession(listener)
        yield played
        played.close()


class Running:
    """A supervisor in a thread."""

    def __init__(self, port: int, folder: Path, patience_s: float) -> None:
        self.said: list[str] = []
        self.status: int | None = None
        self.supervisor = Supervisor(JoinTerms("127.0.0.1", port, "t", "n1", 4, patience_s, folder), self.said.append)
        self._thread = daemon(self._run, name="supervisor")

    def _run(self) -> None:
        self.status = self.supervisor.run()

    def ended(self) -> int | None:
        """Waits until it has ended. Returns its exit status."""
        self._thread.join()
        return self.status


@pytest.fixture
def start(session: PlayedSession, tmp_path: Path) -> Callable[..., Running]:
    return lambda patience_s=60.0: Running(session.port, tmp_path / "logs", patience_s)


def welcome(folder: Path, silence_s: float = 25.0) -> tuple[Welcome, bytes]:
    folder.mkdir()
    scenarios = (Scenario("s-0", ({"role": "user", "content": "A lamp?"},)),)
    dataset = DatasetInfo("shop", "f", "data.json", "0" * 64, "hand", 1)
    settings = pool_settings(Suite("shop", folder, scenarios, dataset=dataset, agent={"kind": "tool_calling"}))
    return Welcome("w1", settings, Budgets(), 1, None, None, silence_s), suite_files.pack(settings.suites)


def test_join(session: PlayedSession, start: Callable[..., Running]) -> None:
    """A node worker introduces itself, answers ticks before its processes serve, and ends with the status 0 when it is told to."""
    running = start()
    join = session.accept()
    session.send(Tick(7))
    assert 7 == (tock := session.next()).pool_ns
    assert isinstance(tock, Tock)
    session.send(Bye("the session is over"))

    assert OVER == running.ended()
    assert ("n1", 4) == (join.node, join.slots)
    assert ["the session is over"] == running.said


def test_refused(session: PlayedSession, start: Callable[..., Running]) -> None:
    """A node worker that is not admitted ends with the status 4 and the reason."""
    running = start()
    session.accept()
    session.send(NotAdmitted("it has package a on Python 3.11", again=False))

    assert REFUSED == running.ended()
    assert ["the session does not admit this node worker: it has package a on Python 3.11"] == running.said


def test_another_protocol(session: PlayedSession, start: Callable[..., Running]) -> None:
    """A session with another protocol version refuses, and the node worker says so."""
    running = start()
    session.accept()
    session.send(Refused("both need the same version of pytest-agentbench"))

    assert REFUSED == running.ended()
    assert ["both need the same version of pytest-agentbench"] == running.said


def test_later(session: PlayedSession, start: Callable[..., Running]) -> None:
    """A node worker that may join again does, as the same instance."""
    running = start()
    first = session.accept()
    session.send(NotAdmitted("the backend cannot be called from there", again=True))
    second = session.accept()
    session.send(Bye("the session is over"))

    assert OVER == running.ended()
    assert first == second


def test_patience(session: PlayedSession, start: Callable[..., Running]) -> None:
    """A node worker that may join again when its patience is over ends with the status 3 and the reason."""
    running = start(patience_s=0.0)
    session.accept()
    session.send(NotAdmitted("the backend cannot be called from there", again=True))

    assert LOST == running.ended()
    assert "the backend cannot be called from there" == running.said[-1]


def test_the_session_is_gone(session: PlayedSession, start: Callable[..., Running], tmp_path: Path) -> None:
    """After a session that has admitted the node worker closes its socket, the node worker ends at once, whatever its patience is."""
    running = start(patience_s=3600)
    session.accept()
    session.send(*welcome(tmp_path / "suite"))
    assert "Joined" == type(session.next()).__name__
    session._listener.close()
    session.close()

    assert LOST == running.ended()
    assert running.said[-1].startswith(f"no session answers at 127.0.0.1:{session.port}: ")


def test_silence(session: PlayedSession, start: Callable[..., Running], tmp_path: Path) -> None:
    """A session that sends nothing for longer than the silence, of which it has told with Welcome, is given up and joined again."""
    running = start()
    first = session.accept()
    session.send(*welcome(tmp_path / "suite", silence_s=1.5))
    assert "Joined" == type(session.next()).__name__
    with pytest.raises(ConnectionError):
        session.next()
    again = session.accept()
    session.send(Bye("the session is over"))

    assert OVER == running.ended()
    assert first == again
    (found,) = (sentence for sentence in running.said if sentence.startswith("nothing has come from the session for"))
    assert float(found.split()[-2]) < SILENCE


def test_leave(session: PlayedSession, start: Callable[..., Running], tmp_path: Path) -> None:
    """A node worker that is asked to end tells the session, so that its leases are free at once."""
    running = start()
    session.accept()
    session.send(*welcome(tmp_path / "suite"))
    assert "Joined" == type(session.next()).__name__
    running.supervisor.leave("SIGTERM came")
    while not isinstance(message := session.next(), Leaving):
        pass

    assert Leaving("SIGTERM came") == message
    assert LOST == running.ended()
    assert "left the session: SIGTERM came" == running.said[-1]


def test_folders(session: PlayedSession, start: Callable[..., Running], tmp_path: Path) -> None:
    """A folder that an earlier session has left with the same name is not used again."""
    (tmp_path / "logs" / "w1").mkdir(parents=True)
    running = start()
    session.accept()
    session.send(*welcome(tmp_path / "suite"))
    assert "Joined" == type(session.next()).__name__
    session.send(Bye("the session is over"))

    assert OVER == running.ended()
    assert [] == [*(tmp_path / "logs" / "w1").iterdir()]
    assert (tmp_path / "logs" / "w1.2" / "runner.log").exists()


def test_no_place_for_files(session: PlayedSession, start: Callable[..., Running], tmp_path: Path) -> None:
    """A node worker that cannot write its files says so, to the session, too, and tries again until its patience is over."""
    (tmp_path / "logs").write_text("a file, not a folder")
    running = start(patience_s=0.0)
    session.accept()
    session.send(*welcome(tmp_path / "suite"))
    message = session.next()
    assert isinstance(message, Leaving)
    session.close()

    assert LOST == running.ended()
    assert message.reason.startswith("its processes could not be started: ")
    assert message.reason == running.said[-1]
