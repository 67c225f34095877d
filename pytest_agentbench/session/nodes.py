"""The node workers of a session, as the controller sees them: the socket that they join at, and those that it starts itself."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from pytest_agentbench.backends.backend import Backend
from pytest_agentbench.backends.per_node import OnNodes
from pytest_agentbench.lib.connection_security import fingerprint_of, server_context
from pytest_agentbench.lib.process import child_environment, ended_within
from pytest_agentbench.records import Endpoint
from pytest_agentbench.rollouts.nodes.endpoints import is_local_address, loopback_problem
from pytest_agentbench.rollouts.nodes.suite_files import check
from pytest_agentbench.rollouts.protocol import NodeTerms
from pytest_agentbench.runs.node_options import LOCAL, node_place
from pytest_agentbench.runs.nodes import NodeLog
from pytest_agentbench.session.settings import Settings
from pytest_agentbench.suites.suite import PoolSuite
from pytest_agentbench.tap.protocol import Budgets

BACKLOG = 256
TOKEN_FILE = "nodes.token"  # in the run directory, while the session runs
GRACE = 5.0  # seconds that node workers of this machine get to end


class SessionNodes:
    """The socket for node workers, its token, and the node workers that the session itself starts on this machine (`local:N`)."""

    def __init__(
        self,
        settings: Settings,
        suites: Mapping[str, PoolSuite],
        directory: Path,
        concurrency: int,
        budgets: Budgets,
        log: NodeLog,
        backend: Backend,
    ) -> None:
        """Opens the socket and writes the token's file.

        Raises pytest.UsageError if the address cannot be used, and ConfigError if the certificate cannot be used, or if the suites have
        files that cannot be sent to node workers.
        """
        check(suites)
        certificate = settings.node_socket["tls"] and (Path(settings.node_socket["tls"][0]), Path(settings.node_socket["tls"][1]))
        if certificate is not None:
            server_context(*certificate)  # Raises an error here instead of in the pool.
        self._listener = _listen(*(settings.node_socket["listen"] or ("127.0.0.1", 0)))
        self._suites, self.log = suites, log
        self._accepts_others = settings.node_socket["listen"] is not None
        self._token, self._file = secrets.token_urlsafe(24), directory / TOKEN_FILE
        with os.fdopen(os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(f"{self._token}\n")
        self._count = 0 if settings.nodes is None else node_place(settings.nodes).count
        self._slots = -(-concurrency // self._count) if self._count else 0
        self._logs = directory / "nodes"
        self._processes: list[subprocess.Popen[bytes]] = []
        bound: tuple[str, int] = self._listener.getsockname()[:2]
        own = socket.gethostname() if bound[0] in ("0.0.0.0", "::") else bound[0]  # noqa: S104 - nothing is bound here
        advertised, advertised_port = settings.node_socket["advertise"] or (own, None)
        self._join = _joined(advertised, advertised_port or bound[1])
        here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bound[0], bound[0])  # noqa: S104 - nothing is bound here
        self._join_here = _joined(here, bound[1])
        self.terms = NodeTerms(
            token=self._token,
            listener=self._listener.fileno(),
            certificate=certificate,
            wait_s=settings.node_socket["wait"],
            budgets=budgets,
            taps=settings.taps,
            sandboxes=settings.sandboxes,
            backend=backend.node_backend if isinstance(backend, OnNodes) else None,
        )

    @property
    def command(self) -> str:
        """The command that starts a node worker for this session on another machine."""
        return " ".join(("agentbench worker", "--join", self._join, "--token-file", str(self._file), *self._trust))

    @property
    def _trust(self) -> tuple[str, ...]:
        return ("--tls-ca", fingerprint_of(self.terms.certificate[0])) if self.terms.certificate else ()

    @property
    def sentences(self) -> Iterator[str]:
        """Yields lines for the session's header: which node workers the session starts, and how others join."""
        if self._count:
            yield f"node workers: {self._count} on this machine, each with {self._slots} slot{'s' * (self._slots > 1)}"
        if self._accepts_others:
            yield f"node workers join with `{self.command}`"
            if self.terms.certificate is None and not self._is_local:
                yield "connections of node workers are not encrypted; --agentbench-nodes-tls=CERT:KEY encrypts them"

    def problem(self, endpoint: Endpoint) -> str:
        """Returns a sentence if node workers on other machines may not reach the backend or a server of the suites, else an empty text."""
        return loopback_problem(endpoint, self._suites.values()) if self._accepts_others and not self._is_local else ""

    @property
    def _is_local(self) -> bool:
        return is_local_address(self._join.rpartition(":")[0].strip("[]"))

    def start(self) -> None:
        """Starts the node workers of this machine."""
        for number in range(1, self._count + 1):
            logs = self._logs / f"{LOCAL}-{number}"
            logs.mkdir(parents=True, exist_ok=True)
            command = [sys.executable, "-m", "pytest_agentbench.cli", "worker", *self._options(number, logs)]
            with (logs / "worker.log").open("ab") as log:
                process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=child_environment(), start_new_session=True
                )
            self._processes.append(process)
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.write(f"{self._token}\n".encode())
                process.stdin.flush()

    def _options(self, number: int, logs: Path) -> Iterator[str]:
        yield from ("--join", self._join_here, "--token-file", "-", "--with-stdin", *self._trust)
        yield from ("--slots", str(self._slots), "--node", f"{LOCAL}-{number}", "--logs", str(logs))

    def stop(self) -> None:
        """Ends the node workers of this machine, closes the socket, and removes the token's file."""
        self._listener.close()
        for process in self._processes:
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.close()
        for process in self._processes:
            if not ended_within(process, GRACE):
                process.kill()
                process.wait()
        self._file.unlink(missing_ok=True)
        self.log.close()


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), backlog=BACKLOG, family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise pytest.UsageError(f"--agentbench-nodes-listen {host}:{port}: {error.strerror or error}") from error


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
