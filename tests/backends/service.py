"""A service for stacks of the tests: a small OpenAI-compatible server that can be slow, die, and leave processes behind.

It is started with `python service.py --port 8000 --slow 0.5 --die-after 2 ...`. `GET /die` ends it with exit code 7. A request with
tools is answered with a call of the first tool.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    options: argparse.Namespace
    started = time.monotonic()
    seen: list[str] = []  # requests that this process got

    def do_GET(self) -> None:
        if self.path == "/die":
            die()
        answers = {
            "/health": (503, {"status": "loading"}) if self.loads() else (200, {"status": "ok"}),
            "/seen": (200, self.seen),
            "/environ": (200, dict(os.environ)),
            "/v1/models": (200, {"object": "list", "data": [{"id": self.options.model}]}),
            f"/v1/models/{self.options.model}/ready": (
                200,
                {"namespaces": {"x": {"worker_types": {"decode": {"workers": 2 + self.haunted()}}}}},
            ),
        }
        self.answer(*answers.get(self.path, (404, {"detail": "Not Found"})))

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        last = asked["messages"][-1]
        self.seen.append(last["content"])
        if self.options.die_at and self.options.die_at in last["content"] and not (self.options.once and Path(self.options.once).exists()):
            die(self.options.once)
        if self.loads():
            self.answer(503, {"error": {"message": "the model is loading"}})
            return
        if asked.get("tools") and self.options.no_tools:
            self.answer(400, {"error": {"message": '"auto" tool choice requires --enable-auto-tool-choice'}})
            return
        message: dict[str, Any] = {"role": "assistant", "content": "Hello"}
        if asked.get("tools") and last["role"] != "tool":
            name = asked["tools"][0]["function"]["name"]
            message["tool_calls"] = [{"index": 0, "id": "call-1", "type": "function", "function": {"name": name, "arguments": "{}"}}]
        time.sleep(self.options.think)
        (self.stream if asked.get("stream") else self.whole)(message)

    def loads(self) -> bool:
        return bool(time.monotonic() - self.started < self.options.slow)

    def haunted(self) -> bool:
        """Returns whether this is the first second after a restart, in which Dynamo still counts the dead worker."""
        return bool(self.options.ghost) and time.monotonic() - self.started < 1 and len(Path(self.options.ghost).read_text()) > 1

    def whole(self, message: dict[str, Any]) -> None:
        usage = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
        self.answer(200, {"id": "1", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage})

    def stream(self, message: dict[str, Any]) -> None:
        choices = [{"index": 0, "delta": message, "finish_reason": None}, {"index": 0, "delta": {}, "finish_reason": "stop"}]
        text = "".join(f"data: {json.dumps({'choices': [choice]})}\n\n" for choice in choices) + "data: [DONE]\n\n"
        self.say(200, "text/event-stream", text.encode())

    def answer(self, status: int, body: Any) -> None:
        self.say(status, "application/json", json.dumps(body).encode())

    def say(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Logs nothing."""


def die(once: str = "") -> None:
    if once:
        Path(once).touch()
    print("Traceback: the engine has had enough", flush=True)
    os._exit(7)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--slow", type=float, default=0, help="seconds until /health says ok and chats are answered")
    parser.add_argument("--think", type=float, default=0, help="seconds until a chat is answered")
    parser.add_argument("--die-after", type=float, default=0, help="seconds")
    parser.add_argument("--die-at", default="", help="a text that it dies of when somebody says it")
    parser.add_argument("--once", default="", help="a file that keeps it from dying of a text again")
    parser.add_argument("--say", default="", help="what it logs at its start")
    parser.add_argument("--ghost", default="", help="a file that counts its lives; in its second it counts a dead worker for a second")
    parser.add_argument("--no-tools", action="store_true")
    parser.add_argument("--stubborn", action="store_true", help="SIGTERM does not end it")
    parser.add_argument("--leave-behind", action="store_true", help="a process in a session of its own")
    Handler.options = options = parser.parse_args()
    if options.ghost:
        with Path(options.ghost).open("a") as lives:
            lives.write("x")
    if options.say:
        print(options.say, flush=True)
    if options.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.leave_behind:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    if options.die_after:
        threading.Timer(options.die_after, os._exit, (3,)).start()
    ThreadingHTTPServer(("127.0.0.1", options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
