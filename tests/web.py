"""Small web servers of tests: what they answer is a test's own, how they are run and stopped is here."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeVar

from aiohttp import web

Server = TypeVar("Server", bound=ThreadingHTTPServer)


class QuietHandler(BaseHTTPRequestHandler):
    """A request to a server of a test, which writes nothing on the terminal."""

    def answer(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        """A whole answer; one to HEAD has the length of the body, and no body."""
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """The server answers until the block ends; then its socket is closed, and its thread has ended."""
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
    """Serves an application in this event loop on a free port of 127.0.0.1; yields its URL, without a path."""
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
