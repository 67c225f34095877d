"""A router that is told about rollouts, like ThunderAgent and Dynamo's router. It answers every chat itself, and records the requests."""

from __future__ import annotations

import json
import select
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from threading import Barrier
from typing import Any

from pytest_agentbench.records import Json
from tests.web import QuietHandler, serving

TEXT: Json = {"role": "assistant", "content": "Here is what was found for you."}
FIND: Json = {"id": "c1", "index": 0, "type": "function", "function": {"name": "find_item", "arguments": '{"item": "lamp"}'}}


class Router(ThreadingHTTPServer):
    """Records requests and known programs. Programs are listed by id, as in ThunderAgent."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, together: int = 1) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.chats: list[tuple[dict[str, str], Json]] = []  # Headers with names in lower case, and body.
        self.programs: dict[str, int] = {}  # Programs that are not released -> number of chats.
        self.releases: list[tuple[str, bool]] = []  # Id, and whether it was known.
        self.refusals: list[str] = []  # Answers to releases before they succeed: `500`, `reset`, `silence`.
        self.faults: list[str] = []  # Details of the 500s that chats get before they are answered.
        self.open: dict[str, list[Any]] = {}  # Id -> connections of chats that are not answered.
        self.early: list[str] = []  # Ids that were released while one of their chats was open.
        self.lists = True  # Whether GET /programs is supported.
        self.together = Barrier(together, timeout=60)  # This number of chats is answered at the same moment.
        self.workers = 2  # Workers that its list of ready workers has.
        self.loses_after: int | None = None  # Number of chats after which the list has one worker less, although all are answered.
        self.knows_sessions = True  # Whether it answers a session's last call itself; otherwise it is a plain engine.

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores connections that agents close."""


class Handler(QuietHandler):
    server: Router
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._answer({"object": "list", "data": [{"id": "m"}]})
        elif self.path == "/v1/models/m/ready":
            lost = self.server.loses_after is not None and len(self.server.chats) >= self.server.loses_after
            self._answer({"namespaces": {"x": {"worker_types": {"decode": {"workers": self.server.workers - lost}}}}})
        elif self.path == "/programs" and self.server.lists:
            self._answer({id: {"step_count": chats, "state": "active"} for id, chats in self.server.programs.items()})
        else:
            self._answer({"detail": "Not Found"}, 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/programs/release":
            self._release(body["program_id"])
        elif self.headers.get("x-dynamo-session-final") == "true" and self.server.knows_sessions:
            self._release(self.headers["x-dynamo-session-id"], {"id": "", "choices": [], "usage": None})
        else:
            self._chat(body)

    def _release(self, id: str, answer: Json | None = None) -> None:
        match self.server.refusals.pop(0) if self.server.refusals else "":
            case "500":
                self._answer({"detail": "Internal Server Error"}, 500)
            case "reset":
                self.close_connection = True
            case "silence":
                self.rfile.read(1)  # Waits until the client gives up.
                self.close_connection = True
            case _:
                if any(not select.select([connection], [], [], 0)[0] for connection in self.server.open.get(id, ())):
                    self.server.early.append(id)
                known = self.server.programs.pop(id, None) is not None
                self.server.releases.append((id, known))
                self._answer(answer or {"program_id": id, "released": known})

    def _chat(self, body: Json) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.chats.append((headers, body))
        id = body.get("program_id") or headers.get("x-dynamo-session-id") or "default"
        self.server.programs[id] = self.server.programs.get(id, 0) + 1
        if self.server.faults:
            self._answer({"detail": self.server.faults.pop(0)}, 500)
            return
        if "forever" in str(body["messages"]):
            self.server.open.setdefault(id, []).append(self.connection)
            self.rfile.read(1)
            self.server.open[id].remove(self.connection)
            self.close_connection = True
            return
        self.server.together.wait()
        called = any(message["role"] == "assistant" for message in body["messages"])
        message = TEXT if called or not body.get("tools") else {"role": "assistant", "content": None, "tool_calls": [FIND]}
        told = {"worker_id": {"decode_worker_id": 7}, "timing": {"kv_hit_rate": 0.5}}
        nvext = {"nvext": {name: told[name] for name in body["nvext"]["extra_fields"]}} if "nvext" in body else {}
        usage = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if message.get("tool_calls") else "stop"}
        self._answer({"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage, **nvext})

    def _answer(self, value: Json, status: int = 200) -> None:
        self.answer(status, json.dumps(value).encode())


@contextmanager
def routing(together: int = 1) -> Iterator[Router]:
    """Yields a router that serves during the block."""
    with serving(Router(together)) as router:
        yield router
