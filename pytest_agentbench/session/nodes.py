"""The node workers of a session, as the controller sees them: the socket that they join at, and the launcher that starts them."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_agentbench.backends.backend import Backend
from pytest_agentbench.backends.per_node import OnNodes
from pytest_agentbench.errors import AgentbenchError, BackendError, ConfigError
from pytest_agentbench.launchers import make_launcher
from pytest_agentbench.launchers.launcher import Launcher, WorkerTerms
from pytest_agentbench.lib.connection_security import fingerprint_of, server_context
from pytest_agentbench.lib.error_texts import cause
from pytest_agentbench.lib.threads import daemon
from pytest_agentbench.records import Endpoint
from pytest_agentbench.rollouts.nodes.endpoints import is_local_address, loopback_problem
from pytest_agentbench.rollouts.nodes.suite_files import check
from pytest_agentbench.rollouts.protocol import NodesQueued, NodeTerms
from pytest_agentbench.runs.nodes import LaunchRecord, NodeLog
from pytest_agentbench.session.settings import Settings
from pytest_agentbench.suites.suite import PoolSuite
from pytest_agentbench.tap.protocol import Budgets

BACKLOG = 256
TOKEN_FILE = "nodes.token"  # in the run directory, while the session runs
PAUSE = 2.0  # seconds between two looks at the state of node workers that a launcher has started


class SessionNodes:
    """The socket for node workers, its token, and the launcher that starts node workers (`--agentbench-nodes`)."""

    def __init__(
        self,
        settings: Settings,
        suites: Mapping[str, PoolSuite],
        directory: Path,
        concurrency: int,
        budgets: Budgets,
        log: NodeLog,
        backend: Backend,
        session: int,
    ) -> None:
        """Opens the socket and writes the token's file. `session` is the number of the session.

        Raises pytest.UsageError if the address cannot be used, and ConfigError if the launcher or the certificate cannot be used, or if
        the suites have files that cannot be sent to node workers.
        """
        check(suites)
        launcher = usable_launcher(settings, backend)
        certificate = settings.node_socket["tls"] and (Path(settings.node_socket["tls"][0]), Path(settings.node_socket["tls"][1]))
        if certificate is not None:
            server_context(*certificate)  # Raises an error here instead of in the pool.
        self._listener = _listen(*(settings.node_socket["listen"] or ("127.0.0.1", 0)))
        self._suites, self.log = suites, log
        self._accepts_others = settings.node_socket["listen"] is not None
        token, self._file = secrets.token_urlsafe(24), directory / TOKEN_FILE
        with os.fdopen(os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(f"{token}\n")
        join, join_here = _addresses(self._listener, settings.node_socket["advertise"])
        self.terms = NodeTerms(
            token=token,
            listener=self._listener.fileno(),
            certificate=certificate,
            wait_s=settings.node_socket["wait"],
            budgets=budgets,
            taps=settings.taps,
            sandboxes=settings.sandboxes,
            backend=backend.node_backend if isinstance(backend, OnNodes) else None,
        )
        self._worker_terms = WorkerTerms(
            session=directory.name,
            join=join,
            join_here=join_here,
            token=token,
            token_file=self._file,
            trust=("--tls-ca", fingerprint_of(certificate[0])) if certificate else (),
            concurrency=concurrency,
            logs=directory / "nodes",
        )
        self.launch = (
            None if launcher is None else Launch(launcher, self._worker_terms, log, LaunchRecord(session, settings.nodes or "", "", None))
        )

    @property
    def command(self) -> str:
        """The command that starts a node worker for this session on another machine."""
        terms = self._worker_terms
        return " ".join(("agentbench worker", "--join", terms.join, "--token-file", str(self._file), *terms.trust))

    @property
    def sentences(self) -> Iterator[str]:
        """Yields lines for the session's header: which node workers the session starts, and how others join."""
        if self.launch is not None:
            yield f"node workers: {self.launch.launcher.sentence(self._worker_terms)}"
        if self._accepts_others:
            yield f"node workers join with `{self.command}`"
            if self.terms.certificate is None and not self._is_local:
                yield "connections of node workers are not encrypted; --agentbench-nodes-tls=CERT:KEY encrypts them"

    def problem(self, endpoint: Endpoint) -> str:
        """Returns a sentence if node workers on other machines may not reach the backend or a server of the suites, else an empty text."""
        return loopback_problem(endpoint, self._suites.values()) if self._accepts_others and not self._is_local else ""

    @property
    def _is_local(self) -> bool:
        return is_local_address(self._worker_terms.join.rpartition(":")[0].strip("[]"))

    def stop(self) -> None:
        """Ends the node workers that were started, closes the socket, and removes the token's file."""
        self._listener.close()
        if self.launch is not None:
            self.launch.stop()
        self._file.unlink(missing_ok=True)
        self.log.close()


class Launch:
    """The node workers that a launcher starts for a session. A thread starts them and follows their state."""

    def __init__(self, launcher: Launcher, terms: WorkerTerms, log: NodeLog, record: LaunchRecord) -> None:
        """Starts nothing. `record` is what the log will say of the launch, as far as it is known."""
        self.launcher = launcher
        self._terms, self._log, self._record = terms, log, record
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.stop_note = ""  # what could not be ended; known after `stop`

    def start(self, tell: Callable[[str], None], queued: Callable[[NodesQueued], object], fail: Callable[[str], None]) -> None:
        """Starts the node workers in the background.

        Args:
            tell: Shows a sentence to the user.
            queued: Tells the pool whether node workers wait for machines.
            fail: Ends the session with a reason, because no node workers can be started.
        """
        self._thread = daemon(self._run, tell, queued, fail, name="launch")

    def stop(self) -> None:
        """Ends the node workers, or says in `stop_note` why that is not possible."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        try:
            self.launcher.stop()
        except BackendError as error:
            self.stop_note = f"not all that --agentbench-nodes={self._record.launcher} has started can be ended: {error}"

    def _run(self, tell: Callable[[str], None], queued: Callable[[NodesQueued], object], fail: Callable[[str], None]) -> None:
        began = time.monotonic()
        try:
            self.launcher.start(self._terms)
            while True:
                self._look(began, tell, queued)
                if self._stopped.wait(PAUSE):
                    if self._record.waiting:  # The session was shorter than a pause, so the time in the queue is not known yet.
                        self._look(began, tell, queued)
                    return
        except Exception as error:  # A launcher may come from a plugin.
            fail(f"no node workers can be started: {error if isinstance(error, AgentbenchError) else cause(error)}")

    def _look(self, began: float, tell: Callable[[str], None], queued: Callable[[NodesQueued], object]) -> None:
        """Asks the launcher for the state, writes it to the log if it has changed, and tells user and pool about it."""
        state, before = self.launcher.state(), self._record
        queue_s = before.queue_s if before.queue_s is not None or state.waiting else time.monotonic() - began
        problems = (*before.problems, *({state.problem} - {"", *before.problems}))
        self._record = replace(before, id=state.id, queue_s=queue_s, waiting=state.waiting, problems=problems)
        if state.waiting or before.waiting:
            queued(NodesQueued(bool(state.waiting)))
        if self._record == before:
            return
        self._log.append(self._record)
        what = f"node workers ({state.id or before.launcher})"
        if state.waiting != before.waiting:
            tell(
                f"{what} wait for machines: {state.waiting}" if state.waiting else f"{what} have their machines after {queue_s or 0:.0f} s"
            )
        for problem in problems[len(before.problems) :]:
            tell(f"{what}: {problem}")


def usable_launcher(settings: Settings, backend: Backend) -> Launcher | None:
    """Returns the launcher that the options choose, or None. Raises ConfigError if it cannot be used."""
    if settings.nodes is None:
        return None
    launcher = make_launcher(settings.nodes, backend.nodes, f"backend {backend.name!r}")
    if not launcher.is_local and settings.node_socket["listen"] is None:
        raise ConfigError(
            f"--agentbench-nodes={settings.nodes} starts node workers on other machines; say at which address they reach this one, "
            "such as --agentbench-nodes-listen=10.0.0.5:7100"
        )
    launcher.check()
    return launcher


def _addresses(listener: socket.socket, advertise: tuple[str, int | None] | None) -> tuple[str, str]:
    """Returns HOST:PORT at which other machines reach a socket, and HOST:PORT at which this machine does."""
    host, port = listener.getsockname()[:2]
    own = socket.gethostname() if host in ("0.0.0.0", "::") else host  # noqa: S104 - nothing is bound here
    advertised, advertised_port = advertise or (own, None)
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - nothing is bound here
    return _joined(advertised, advertised_port or port), _joined(here, port)


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), backlog=BACKLOG, family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise pytest.UsageError(f"--agentbench-nodes-listen {host}:{port}: {error.strerror or error}") from error


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
