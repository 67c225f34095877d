"""Starting and stopping small web servers of tests. Their answers are up to each test."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler
from socketserver import BaseServer
from typing import TypeVar

from aiohttp import web

Server = TypeVar("Server", bound=BaseServer)


class QuietHandler(BaseHTTPRequestHandler):
    """A request to a server of a test, which prints nothing on the terminal."""

    def answer(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        """Sends a complete answer. A HEAD request gets the length of the body without the body."""
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """Serves during the block. Afterwards the socket is closed and the thread has ended."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@asynccontextmanager
async def listening(application: web.Application) -> AsyncIterator[str]:
    """Serves an application in this event loop on a free port of 127.0.0.1. Yields its URL without a path."""
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
