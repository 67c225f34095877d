"""A small router for stacks of the tests, and a stack of several built-in engines behind it.

`python engine_router.py PORT POLICY ENGINE_URL,ENGINE_URL,...` forwards each chat to one engine:

- `round-robin`: each call to the next engine
- `sticky`: all calls of a conversation to one engine, by its first user message
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
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

RETRIES = 5


class Forwarder(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # An answer is sent in one piece.
    policy: ClassVar[str]
    engines: ClassVar[list[str]]
    turns = itertools.count()
    lock = threading.Lock()

    def do_GET(self) -> None:
        self._send(*self._forward("GET", self.engines[0], b""))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        status, kind, answer = self._forward("POST", self._engine(body), body)
        for _ in range(RETRIES if self.policy == "retry" else 0):
            if status < 500:
                break
            status, kind, answer = self._forward("POST", self._engine(body), body)
        self._send(status, kind, answer)

    def _engine(self, body: bytes) -> str:
        if self.policy == "first":
            return self.engines[0]
        if self.policy == "sticky":
            first = next(each for each in json.loads(body)["messages"] if each["role"] == "user")
            return self.engines[zlib.crc32(json.dumps(first).encode()) % len(self.engines)]
        with self.lock:
            return self.engines[next(self.turns) % len(self.engines)]

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
    engine = {"run": [sys.executable, "-m", "pytest_agentbench.engine", text], "ready": {"http": "/health"}, "metrics": "/metrics"}
    router = {
        "run": [sys.executable, str(Path(__file__).absolute()), "{port}", policy, "{engine.urls}"],
        "after": ["engine"],
        "ready": {"http": "/health"},
    }
    services = {"engine": {**engine, "replicas": engines}, "router": router}
    return {"model": "m", "services": services, "endpoint": "router", "warm_up": 0}


if __name__ == "__main__":
    port, Forwarder.policy, urls = sys.argv[1:]
    Forwarder.engines = urls.split(",")
    ThreadingHTTPServer(("127.0.0.1", int(port)), Forwarder).serve_forever()
