"""`agentbench worker` says why it cannot take part, and ends with the status that says whether trying again may help."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_agentbench.lib.threads import daemon
from pytest_agentbench.rollouts.nodes.membership import LOST, REFUSED, JoinTerms
from pytest_agentbench.rollouts.nodes.supervisor import Supervisor
from tests.node_workers import free_port

pytestmark = pytest.mark.timeout(60)


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest_agentbench.cli", "worker", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=40)


@pytest.fixture
def token(tmp_path: Path) -> str:
    file = tmp_path / "token"
    file.write_text("t\n")
    return str(file)


@pytest.fixture
def closer() -> Iterator[int]:
    """The port of a server that closes each connection after its first bytes, as a session does if the token is wrong."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1)

        thread = daemon(serve, name="closer")
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def supervisor(tmp_path: Path, port: int, patience_s: float = 0.2) -> tuple[Supervisor, list[str]]:
    said: list[str] = []
    return Supervisor(JoinTerms("127.0.0.1", port, "t", "n1", 4, patience_s, tmp_path), said.append), said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--join", "gpu-1"), "'gpu-1' is not HOST:PORT, such as gpu-1:7100"),
        (("--join", "gpu-1:99999"), "is not HOST:PORT"),
        (("--join", "gpu-1:7100", "--slots", "0"), "'0' is not a number of rollouts from 1 to 4096"),
        (("--join", "gpu-1:7100", "--slots", "many"), "'many' is not a number of rollouts"),
        (("--join", "gpu-1:7100", "--token-file", "nowhere"), "--token-file nowhere: No such file or directory; the session says where"),
        (("--join", "gpu-1:7100", "--token-file", "-"), "--token-file -: it is empty"),
    ],
)
def test_wrong_arguments(token: str, arguments: tuple[str, ...], sentence: str) -> None:
    """A wrong argument is named, with a right one."""
    more = () if "--token-file" in arguments else ("--token-file", token)
    result = run(*arguments, *more)

    assert 4 == result.returncode
    assert sentence in result.stderr


def test_no_session(token: str, tmp_path: Path) -> None:
    """If no session answers within the patience, the command ends with the status 3 and says where it looked."""
    port = free_port()

    result = run("--join", f"127.0.0.1:{port}", "--token-file", token, "--patience", "0.2", "--logs", str(tmp_path))

    assert 3 == result.returncode
    assert f"agentbench worker: no session answers at 127.0.0.1:{port}: " in result.stderr


def test_a_wrong_token(tmp_path: Path, closer: int) -> None:
    """If the session closes each connection without an answer, the token is wrong, and trying again does not help."""
    node, said = supervisor(tmp_path, closer, patience_s=60)

    assert REFUSED == node.run()
    assert said[-1].startswith(f"127.0.0.1:{closer} closes each connection without an answer; the token is not that of the session")


def test_leave_before_joining(tmp_path: Path) -> None:
    """A node worker that waits for a session ends when it is asked to, whatever its patience is."""
    node, said = supervisor(tmp_path, free_port(), patience_s=600)
    statuses: list[int] = []
    thread = daemon(lambda: statuses.append(node.run()), name="worker")
    node.leave("SIGTERM came")
    thread.join()

    assert [LOST] == statuses
    assert ["left the session: SIGTERM came"] == said
