"""A small HTTP router for stacks of tests: forwards chats to engines, by the id of a session or in turn.

`python header_router.py --port 8000 --policy sticky http://127.0.0.1:8001 http://127.0.0.1:8002`
"""

from __future__ import annotations

import argparse
import itertools
import json
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class HeaderRouter(ThreadingHTTPServer):
    """Forwards each chat to one engine.

    - With the policy `sticky`, each new id of a session gets the next engine, and keeps it. Chats without an id go in turn.
    - With the policy `turns`, chats go to the engines in turn, whatever their id.
    - With the policy `one`, all chats go to the first engine.

    The id is in the header `header`, or in the field of the body to which the dotted path `field` leads.
    """

    daemon_threads = True

    def __init__(self, port: int, policy: str, header: str, field: str, engines: list[str]) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.policy, self.header, self.field, self.engines = policy, header, field, engines
        self._turns: Iterator[str] = itertools.cycle(engines)
        self._owners: dict[str, str] = {}  # id of a session -> its engine
        self._choosing = threading.Lock()

    def engine(self, id: str) -> str:
        """Returns the engine for a chat of the session with this id, which is empty if the chat has none."""
        with self._choosing:
            if self.policy == "one":
                return self.engines[0]
            if self.policy == "turns" or not id:
                return next(self._turns)
            return self._owners.setdefault(id, next(self._turns))


class Handler(BaseHTTPRequestHandler):
    server: HeaderRouter
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._forward(self.server.engines[0], None)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self._forward(self.server.engine(self._session(body)), body)

    def _session(self, body: bytes) -> str:
        value: Any = json.loads(body)
        for name in self.server.field.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        return str(self.headers.get(self.server.header) or value or "")

    def _forward(self, engine: str, body: bytes | None) -> None:
        request = urllib.request.Request(f"{engine}{self.path}", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            self.send_response(answer.status)
            self.send_header("content-type", answer.headers["content-type"])
            self.send_header("connection", "close")
            self.end_headers()
            while part := answer.read1(65536):
                self.wfile.write(part)
                self.wfile.flush()
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--policy", choices=["sticky", "turns", "one"], default="sticky")
    parser.add_argument("--header", default="x-session-id")
    parser.add_argument("--field", default="user")
    parser.add_argument("engines", nargs="+")
    options = parser.parse_args()
    with HeaderRouter(options.port, options.policy, options.header, options.field, options.engines) as router:
        router.serve_forever()


if __name__ == "__main__":
    main()
