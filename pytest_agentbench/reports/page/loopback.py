"""The page of a run that goes on, on loopback: whoever knows the address has it, and nobody else an answer."""

from __future__ import annotations

import secrets
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.reports.page.live import LiveRun

PATIENCE = 10.0  # seconds that a connection may be silent
MOST = 64  # connections at the same time; one more is closed

#: Of every answer: nothing keeps it, and nothing shows it in a frame or takes it for another kind of file.
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Loopback(ThreadingHTTPServer):
    """Serves a run on a free port of 127.0.0.1, under an address that nobody can guess."""

    daemon_threads = True
    request_queue_size = 2 * MOST  # If the queue is full, Linux drops the SYN, and the client repeats it a second later.

    def __init__(self, run: LiveRun) -> None:
        super().__init__(("127.0.0.1", 0), PageHandler)
        self.run = run
        self.token = secrets.token_urlsafe(24)
        self._room = threading.BoundedSemaphore(MOST)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/{self.token}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser may leave in the middle of an answer; what else fails is told."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class PageHandler(BaseHTTPRequestHandler):
    """Answers a request."""

    server: Loopback
    timeout = PATIENCE
    server_version, sys_version = "agentbench", ""

    def do_GET(self) -> None:
        """The page, its news, or one rollout. The Host header keeps names out that somebody has lead to 127.0.0.1."""
        if self.headers.get("Host") not in {f"{host}:{self.server.server_port}" for host in ("127.0.0.1", "localhost")}:
            return self._answer(HTTPStatus.FORBIDDEN, "text/plain", "another host is meant\n")
        place = urlsplit(self.path)
        _, token, name = f"{place.path}//".split("/", 3)[:3]
        if not secrets.compare_digest(token.encode(errors="replace"), self.server.token.encode()):
            return self._answer(HTTPStatus.NOT_FOUND, "text/plain", "nothing is here\n")
        try:
            kind, body = self._body(name, {key: values[-1] for key, values in parse_qs(place.query, keep_blank_values=True).items()})
        except (LookupError, ValueError):
            return self._answer(HTTPStatus.NOT_FOUND, "text/plain", "nothing is here\n")
        except (OSError, ConfigError) as error:
            return self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", f"{error}\n")
        return self._answer(HTTPStatus.OK, kind, body)

    def _body(self, name: str, query: dict[str, str]) -> tuple[str, str]:
        """Kind and text; raises LookupError and ValueError for what there is not, OSError and ConfigError for what is unreadable."""
        run = self.server.run
        match name:
            case "":
                return "text/html", run.page()
            case "news":
                return "application/json", run.news(query["generation"], query["state"], max(0, int(query["after"])))
            case "rollout":
                return "application/json", run.rollout(max(0, int(query["number"])))
        raise LookupError(name)

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode(errors="backslashreplace")
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Says nothing: the address has the token in it."""
