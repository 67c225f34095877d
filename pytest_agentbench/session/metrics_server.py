"""The HTTP server of `--agentbench-metrics-port`, which serves the metrics of a run on 127.0.0.1 while it runs."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from pytest_agentbench.lib.error_texts import cause
from pytest_agentbench.lib.threads import daemon

HOST = "127.0.0.1"
PATH = "/metrics"
CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PATIENCE = 10.0  # seconds until a silent connection is closed


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
        self.metrics: Callable[[], bytes] | None = None  # returns the metrics; set by `serve`

    @property
    def address(self) -> str:
        return f"{HOST}:{self.server_port}"

    @property
    def sentence(self) -> str:
        """A line for the user with the URL of the metrics."""
        return f"metrics of this run at http://{self.address}{PATH}"

    def serve(self, metrics: Callable[[], bytes]) -> None:
        """Begins to answer requests, in threads. They call `metrics`, which returns OpenMetrics text."""
        self.metrics = metrics
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
            text = self.server.metrics()
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
