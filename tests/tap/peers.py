"""The peers of a tap in tests: its control port, backends and agents that write exact bytes, and functions that wait for events."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple
from uuid import uuid4

from pytest_agentbench.lib.process import Child
from pytest_agentbench.records import Json, LLMCall
from pytest_agentbench.tap.client import TapControl
from pytest_agentbench.tap.protocol import (
    AddressCalls,
    CloseAddress,
    GetTapStats,
    OpenAddress,
    PointAt,
    TapDone,
    TapListening,
    TapStats,
    UpstreamFacts,
)

CHAT: Json = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"
LAST_CHUNK = b"0\r\n\r\n"
STREAMED = json.dumps({**CHAT, "stream": True}).encode()  # body of a call that streams

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Message(NamedTuple):
    """An HTTP request or response as received."""

    first: str  # first line
    headers: dict[str, str]  # names in lower case
    body: bytes

    @property
    def status(self) -> int:
        return int(self.first.split()[1])

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Tap:
    """A running tap, with its control port."""

    def __init__(self, child: Child, ports: TapListening, control: TapControl) -> None:
        self.child, self.control = child, control
        self.port: int = ports.port

    async def point_at(self, url: str, **more: Any) -> None:
        await self.control.ask(PointAt(UpstreamFacts(url, **more)), TapDone)

    async def open(self, upgrade: bool | None = True, **more: Any) -> str:
        """Opens the address of a rollout and returns its id. By default all its calls are streamed."""
        id = uuid4().hex
        await self.control.ask(OpenAddress(id, upgrade, **more), TapDone)
        return id

    async def close(self, id: str) -> list[LLMCall]:
        return [*(await self.control.ask(CloseAddress(id), AddressCalls)).calls]

    async def in_flight(self) -> int:
        return (await self.control.ask(GetTapStats(), TapStats)).in_flight

    async def is_idle(self) -> bool:
        return await self.in_flight() == 0

    def url(self, id: str) -> str:
        return f"http://127.0.0.1:{self.port}/r/{id}/v1"


class Agent:
    """One connection of an agent that writes bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def ask(self, data: bytes) -> Message:
        await self.send(data)
        return await self.answer()

    async def answer(self) -> Message:
        async with asyncio.timeout(20):
            return await read_message(self.reader)

    async def rest(self) -> bytes:
        """Returns everything until the tap closes the connection, normally or not."""
        got = b""
        with suppress(ConnectionError):
            async with asyncio.timeout(20):
                while data := await self.reader.read(1 << 16):
                    got += data
        return got

    def reset(self) -> None:
        self.writer.transport.abort()


@asynccontextmanager
async def agent(port: int) -> AsyncIterator[Agent]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Agent(reader, writer)
    finally:
        await shut(writer)


@asynccontextmanager
async def backend(handler: Handler, **options: Any) -> AsyncIterator[str]:
    """A server that calls `handler` for each connection. Yields its address."""
    running: set[asyncio.Task[None]] = set()
    faults: list[BaseException] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            await handler(reader, writer)
        except (EOFError, ConnectionError, asyncio.CancelledError):
            pass  # The tap has disconnected, or the test is over.
        except Exception as error:  # Fail the test instead of only logging the error.
            faults.append(error)
        finally:
            running.discard(task)
            await shut(writer)

    place: dict[str, Any] = {} if "sock" in options else {"host": "127.0.0.1", "port": 0}
    server = await asyncio.start_server(handle, **place, **options)
    scheme = "https" if options.get("ssl") else "http"
    try:
        yield f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await server.wait_closed()
    if faults:
        raise faults[0]


async def shut(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def read_message(reader: asyncio.StreamReader) -> Message:
    """Returns the next request or response. Without a length it has no body. Raises IncompleteReadError if it is truncated."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        return Message(first, headers, b"".join([chunk async for chunk in chunks(reader)]))
    return Message(first, headers, await reader.readexactly(int(headers.get("content-length", 0))))


async def chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Returns the chunks of a body."""
    while True:
        size = int(await reader.readuntil(b"\r\n"), 16)
        data = (await reader.readexactly(size + 2))[:-2]
        if not size:
            return
        yield data


def request(id: str, path: str = "/chat/completions", body: bytes | None = None, method: str = "POST", headers: str = "") -> bytes:
    """Returns the bytes of a request to the tap, with a Chat Completions call as the default body."""
    content = json.dumps(CHAT).encode() if body is None else body
    length = f"content-length: {len(content)}\r\n" if method == "POST" else ""
    head = f"{method} /r/{id}/v1{path} HTTP/1.1\r\nhost: tap\r\n{length}{headers}\r\n"
    return head.encode() + (content if method == "POST" else b"")


def response(body: bytes, status: int = 200, headers: str = "content-type: application/json\r\n") -> bytes:
    return f"HTTP/1.1 {status} Whatever\r\n{headers}content-length: {len(body)}\r\n\r\n".encode() + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(delta: Json | None = None, finish_reason: str | None = None, **more: Any) -> bytes:
    """Returns one event of a Chat Completions stream. Without a delta it has no choice."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish_reason}]
    data = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices, **more}
    return b"data: %b\n\n" % json.dumps(data).encode()


OPENING = event({"role": "assistant", "content": ""}) + event({"content": "Hi"})


def stream(*parts: bytes) -> bytes:
    """Returns a complete streamed response."""
    return STREAM_HEAD + b"".join(map(chunk, parts)) + LAST_CHUNK


def said(text: str = "Hi") -> bytes:
    """Returns a complete streamed response with `text`."""
    return stream(event({"role": "assistant", "content": ""}), event({"content": text}), event({}, "stop"), DONE)


def answering(*answers: bytes, requests: list[Message] | None = None) -> Handler:
    """Returns a handler that answers the n-th of all requests with the n-th of `answers`, and later ones with the last."""
    heard = [] if requests is None else requests

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            heard.append(await read_message(reader))
            writer.write(answers[min(len(heard), len(answers)) - 1])
            await writer.drain()

    return handle


def text_of(answer: Message) -> str:
    """Returns the text of a complete answer."""
    return str(answer.json["choices"][0]["message"]["content"])


async def until(condition: Callable[[], Any | Awaitable[Any]], what: str, seconds: float = 20) -> None:
    """Waits for a condition. Fails with `what` if it does not become true."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if await found if isinstance(found, Awaitable) else found:
            return
        assert time.monotonic() < deadline, f"still waiting for {what}"
        await asyncio.sleep(0.005)
