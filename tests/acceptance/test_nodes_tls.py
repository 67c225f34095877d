"""Sessions whose node workers join over TLS, and sessions whose suites have files that cannot be sent to nodes."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from pytest_agentbench.lib.connection_security import fingerprint_of
from tests.certificates import make, needs_openssl
from tests.project import Project

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture
def secured(project: Project) -> Iterator[tuple[Project, subprocess.Popen[bytes], int]]:
    """Yields a project with a suite, a session of it that waits for node workers over TLS, and the port where they join."""
    project.backend()
    project.suite()
    make(project.root)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    options = [f"--agentbench-nodes-listen=127.0.0.1:{port}", "--agentbench-nodes-tls=server.pem:server.key"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "scenarios/shop", *options]
    with (project.root / "session.log").open("wb") as log, subprocess.Popen(command, cwd=project.root, stdout=log, stderr=log) as session:
        try:
            yield project, session, port
        finally:
            session.terminate()


def worker(project: Project, port: int, *options: str) -> int:
    """Runs a node worker, and returns its exit status."""
    while not (tokens := [*project.root.glob("reports/*/nodes.token")]):
        time.sleep(0.1)
    command = [sys.executable, "-m", "pytest_agentbench.cli", "worker", "--join", f"127.0.0.1:{port}", "--token-file", str(tokens[0])]
    return subprocess.run([*command, "--logs", str(project.root / "worker"), *options], cwd=project.root, check=False).returncode


@needs_openssl
def test_tls(secured: tuple[Project, subprocess.Popen[bytes], int]) -> None:
    """A node worker with the hash of the certificate makes the rollouts. With another authority, or without TLS, it exits with 4."""
    project, session, port = secured
    other = project.root / "other"
    other.mkdir()
    make(other)
    statuses = [
        worker(project, port, "--tls-ca", str(other / "ca.pem")),
        worker(project, port),
        worker(project, port, "--tls-ca", fingerprint_of(project.root / "server.pem")),
    ]
    session.wait(60)

    assert [4, 4, 0] == statuses
    assert 0 == session.returncode, (project.root / "session.log").read_text()
    assert {"w1"} == {rollout.node for rollout in project.rollouts}
    assert ["server.pem", "server.key"] == project.run_json["settings"]["node_socket"]["tls"]


def test_files_that_cannot_be_sent(project: Project) -> None:
    """A session with node workers is refused at its start if a link of a suite leads to a file that is not sent."""
    project.backend()
    project.suite()
    (project.root / "scenarios" / "shop" / "link").symlink_to("/etc/passwd")
    result = project.run("scenarios/shop", "--agentbench-nodes=local:1")

    assert 4 == result.ret
    result.stderr.fnmatch_lines(["*shop/link: is a link that leads to /etc/passwd, which is not sent to node workers; replace it*"])
