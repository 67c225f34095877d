"""Serves the metrics of a run on 127.0.0.1 while it runs (`--agentbench-metrics-port`), for Prometheus."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_agentbench.lib.error_texts import cause
from pytest_agentbench.lib.threads import daemon
from pytest_agentbench.records import RolloutKey
from pytest_agentbench.reports import openmetrics
from pytest_agentbench.runs.builder import RunReader
from pytest_agentbench.runs.journal import FILE, read_journal
from pytest_agentbench.session.results import MainScore, main_scores
from pytest_agentbench.session.summary import run_so_far

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from pytest_agentbench.session.open_session import OpenSession

HOST = "127.0.0.1"
PATH = "/metrics"
CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PATIENCE = 10.0  # seconds until a silent connection is closed
SHARE = 20  # The time between two computations of the metrics is at least this many times the duration of the last one.


class RolloutsSoFar:
    """The rollouts of a run that has not ended, from its journal. Each is read once, unless one ran again. Not thread-safe."""

    def __init__(self, directory: Path, mains: Mapping[str, MainScore]) -> None:
        """`directory` is that of the run, and `mains` has the main score of each `suite` or `suite-variant`."""
        self._directory, self._mains = directory, mains
        self._forget()

    def _forget(self) -> None:
        self._reader = RunReader()
        self._sessions: dict[RolloutKey, int] = {}  # rollout that was read -> number of the session in which it ran
        self._offset = 0  # bytes of the journal that were read for certain

    def read(self) -> RunReader:
        """Reads the rollouts that were recorded since the last call. Returns a reader with all of them, which the next call may change."""
        if not self._read_on():
            self._forget()
            self._read_on()
        return self._reader

    def _read_on(self) -> bool:
        """Reads new rollouts. Returns False if one of them replaces a rollout that was read before, so that all have to be read again."""
        end = (self._directory / FILE).stat().st_size
        for each in read_journal(self._directory, lambda _: None, self._offset):  # Damaged lines are reported at the end.
            if each.kind == "scenario" and each.key.group in self._mains:
                if each.key not in self._sessions:
                    self._sessions[each.key] = each.session
                    self._reader.add(each, *self._mains[each.key.group])
                elif self._sessions[each.key] != each.session:  # otherwise it was recorded during the last call, after `end` was read
                    return False
        self._offset = end
        return True


class RunMetrics:
    """The metrics of a run that has not ended. Safe to use from threads.

    They are computed on request, at most as often as costs 5 % of a core. Requests in between get the metrics of the last time.
    """

    def __init__(self, opened: OpenSession) -> None:
        self._opened = opened
        self._rollouts = RolloutsSoFar(opened.directory, main_scores(opened.setup.discovered.compiled))
        self._lock = threading.Lock()
        self._text, self._due = b"", 0.0  # last result, and the earliest time for the next one in seconds, time.monotonic()

    def text(self) -> bytes:
        """Returns the metrics in the OpenMetrics format."""
        with self._lock:
            if (began := time.monotonic()) >= self._due:
                self._text = openmetrics.text(run_so_far(self._opened, self._rollouts.read()), self._of_session())
                ended = time.monotonic()
                self._due = ended + SHARE * (ended - began)
            return self._text

    def _of_session(self) -> Iterator[Metric]:
        """Yields the metrics that only a session that runs has."""
        from prometheus_client.core import InfoMetricFamily

        opened = self._opened
        name = {"run": opened.directory.name, "backend": opened.setup.backend.name}
        yield InfoMetricFamily("agentbench_run", "Names of the run and of its backend.", value=name)
        yield openmetrics.gauge("planned_rollouts", "Rollouts that the session has planned.", [({}, opened.recorder.planned_keys)])
        yield openmetrics.gauge("rollouts_in_flight", "Rollouts with a running attempt.", [({}, opened.services.in_flight)])


class MetricsServer(ThreadingHTTPServer):
    """The HTTP server of a run's metrics. It serves from `serve` until `close`."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        """Binds the port, 0 for any free one. Raises pytest.UsageError if that is impossible."""
        try:
            super().__init__((HOST, port), MetricsHandler)
        except OSError as error:
            raise pytest.UsageError(
                f"--agentbench-metrics-port {port}: the port cannot be used: {error.strerror}; give another one, or 0 for any free one"
            ) from error
        self.metrics: RunMetrics | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.server_port}"

    @property
    def sentence(self) -> str:
        """A line for the user with the URL of the metrics."""
        return f"metrics of this run at http://{self.address}{PATH}"

    def serve(self, opened: OpenSession) -> None:
        """Begins to answer requests for the metrics of a session, in threads."""
        self.metrics = RunMetrics(opened)
        daemon(self.serve_forever, name="metrics-server")

    def close(self) -> None:
        """Ends the server. May be called without `serve`."""
        if self.metrics is not None:
            self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints nothing: an error of a request is part of its answer, or the client has closed the connection."""


class MetricsHandler(BaseHTTPRequestHandler):
    """Answers the requests of Prometheus for the metrics of a run."""

    server: MetricsServer
    timeout = PATIENCE
    server_version, sys_version = "agentbench", ""

    def do_GET(self) -> None:
        """Answers with the metrics. The check of the Host header prevents DNS rebinding."""
        if self.headers.get("Host", "").rpartition(":")[0] not in (HOST, "localhost"):
            return self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"unexpected Host header\n")
        if self.path.partition("?")[0] != PATH or self.server.metrics is None:
            return self._answer(HTTPStatus.NOT_FOUND, "text/plain", f"the metrics are at {PATH}\n".encode())
        try:
            text = self.server.metrics.text()
        except Exception as error:  # The run goes on without its metrics.
            return self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", f"{cause(error)}\n".encode(errors="replace"))
        return self._answer(HTTPStatus.OK, CONTENT_TYPE, text)

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Logs nothing, because Prometheus sends a request every few seconds."""
