"""A small router for stacks of the tests, and stacks of several built-in engines behind it.

`python engine_router.py PORT POLICY ENGINE_URL...` forwards each chat to one engine. URLs may also be joined by commas. Policies:

- `round-robin`: each call to the next engine
- `sticky`: all calls of a conversation to one engine, by its first user message
- `session`: all calls of a session to one engine, by the id in the header HEADER or in a field of the body; each new id gets the next
  engine, and calls without an id go round robin
- `first`: all calls to the first engine, as a router whose session id is always empty
- `retry`: to the next engine, and to the one after it if an engine answers with an error of its own, up to RETRIES times
"""

from __future__ import annotations

import http.client
import itertools
import json
import sys
import threading
import zlib
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

RETRIES = 5
HEADER = "x-session-id"


class EngineRouter(ThreadingHTTPServer):
    """The router. `field` is the path of the field with a session's id, whose names are separated by dots."""

    daemon_threads = True

    def __init__(self, port: int, policy: str, engines: Sequence[str], field: str = "user") -> None:
        super().__init__(("127.0.0.1", port), Forwarder)
        self.policy, self.engines, self.field = policy, engines, field
        self._turns = itertools.cycle(engines)
        self._owners: dict[str, str] = {}  # id of a session -> its engine
        self._choosing = threading.Lock()

    def engine(self, headers: Any, body: bytes) -> str:
        """Returns the engine for a chat."""
        with self._choosing:
            if self.policy == "first":
                return self.engines[0]
            if self.policy == "sticky":
                first = next(each for each in json.loads(body)["messages"] if each["role"] == "user")
                return self.engines[zlib.crc32(json.dumps(first).encode()) % len(self.engines)]
            if self.policy == "session" and (id := self._session(headers, body)):
                return self._owners.get(id) or self._owners.setdefault(id, next(self._turns))
            return next(self._turns)

    def _session(self, headers: Any, body: bytes) -> str:
        value: Any = json.loads(body)
        for name in self.field.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        return str(headers.get(HEADER) or value or "")


class Forwarder(BaseHTTPRequestHandler):
    """One request."""

    server: EngineRouter
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # An answer is sent in one piece.

    def do_GET(self) -> None:
        self._send(*self._forward("GET", self.server.engines[0], b""))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        status, kind, answer = self._forward("POST", self.server.engine(self.headers, body), body)
        for _ in range(RETRIES if self.server.policy == "retry" else 0):
            if status < 500:
                break
            status, kind, answer = self._forward("POST", self.server.engine(self.headers, body), body)
        self._send(status, kind, answer)

    def _forward(self, method: str, engine: str, body: bytes) -> tuple[int, str, bytes]:
        connection = http.client.HTTPConnection(urlsplit(engine).netloc)
        try:
            connection.request(method, self.path, body, {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.headers["content-type"] or "", answer.read()
        finally:
            connection.close()

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""


def routed_stack(policy: str, rules: Path, engines: int = 3, **config: Any) -> dict[str, Any]:
    """Returns the YAML of a stack: engines that answer from a script and name themselves, behind the router with this policy."""
    own = {"policy": "script", "script": str(rules), "model": "m", **config}
    text = json.dumps(own)[:-1] + ', "port": {port}, "worker_id": "engine-{replica}"}'
    return {"model": "m", "services": _services(text, engines, policy), "endpoint": "router", "warm_up": 0}


def session_stack(policy: str = "session", **labels: Any) -> dict[str, Any]:
    """Returns the YAML of a stack: two engines without names behind a router that reads a session's id. Its policy is a setting."""
    text = '{"policy": "lexical", "model": "{model}", "port": {port}}'
    keys = {"kind": "session", "headers": [HEADER], **labels}
    return {"model": "m", "services": _services(text, 2, "{policy}"), "settings": {"policy": policy}, "warm_up": 0, "labels": keys}


def _services(config: str, engines: int, policy: str) -> dict[str, Any]:
    engine = {"run": [sys.executable, "-m", "pytest_agentbench.engine", config], "ready": {"http": "/health"}, "metrics": "/metrics"}
    command = [sys.executable, str(Path(__file__).absolute()), "{port}", policy, "{engine.urls*}"]
    return {"engine": {**engine, "replicas": engines}, "router": {"run": command, "ready": {"http": "/health"}}}


if __name__ == "__main__":
    port, policy, *urls = sys.argv[1:]
    with EngineRouter(int(port), policy, [each for url in urls for each in url.split(",")]) as router:
        router.serve_forever()
