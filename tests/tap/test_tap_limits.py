"""Limits of what the tap stores: of clients without an address, and of answers of backends."""

from __future__ import annotations

import asyncio
import gzip
import json
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from pytest_agentbench.lib.process import Child
from pytest_agentbench.tap.answers import BATCH, LARGEST, MOST_EVENTS, SLICE, BackendAnswer
from pytest_agentbench.tap.client import TapControl
from pytest_agentbench.tap.dialects import DIALECTS
from pytest_agentbench.tap.protocol import TapListening
from pytest_agentbench.tap.stream import NetworkRead
from pytest_agentbench.tap.upstream import LONGEST_HEAD
from tests.tap.conftest import TOKEN, StartTap
from tests.tap.peers import DONE, STREAM_HEAD, STREAMED, Tap, agent, answering, backend, chunk, event, read_message, request, response, said

MIB = 1 << 20


@pytest.mark.parametrize("framing", ["content-length: 1000000000", "transfer-encoding: chunked"])
async def test_a_body_for_an_unknown_address(tap: Tap, framing: str) -> None:
    """A request to an unknown address is refused after a few kilobytes, without reading its body, and its connection is closed."""
    async with agent(tap.port) as stranger:
        head = f"POST /r/guessed/v1/chat/completions HTTP/1.1\r\nhost: x\r\n{framing}\r\n\r\n".encode()
        await stranger.send(head + chunk(b"x" * 20_000))
        rest = await stranger.rest()

    assert rest.startswith(b"HTTP/1.1 404 ")
    assert b"connection: close" in rest.lower()


@pytest.mark.parametrize("head", [b"\r\n" * 10_000, b"GET /" + b"x" * 20_000, b"GET / HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 4_000])
async def test_a_head_without_an_end(tap: Tap, head: bytes) -> None:
    """The length of paths and headers is limited."""
    async with agent(tap.port) as stranger:
        await stranger.send(head)
        rest = await stranger.rest()

    assert rest.startswith(b"HTTP/1.1 431 ")


async def test_small_requests_for_an_unknown_address(tap: Tap) -> None:
    """A small complete request to an unknown address gets an error, and its connection stays open for a request with a valid one."""
    id = await tap.open()
    async with backend(answering(said("hello"))) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        answers = [await caller.ask(request(each)) for each in ("guessed", "guessed", id)]

    assert [404, 404, 200] == [answer.status for answer in answers]


@pytest.mark.parametrize("size", [4097, 1 << 29])
async def test_a_long_introduction(tap: Tap, shared_tap: tuple[Child, TapListening], size: int) -> None:
    """A client that announces a Hello of more than 4 KiB to the control port is disconnected before any of it is read."""
    async with agent(shared_tap[1].control_port) as line:
        await line.send(struct.pack("!II", size, 0))

        assert b"" == await line.rest()


def endless(head: bytes, piece: Callable[[], bytes], closed: asyncio.Event) -> Callable[..., object]:
    """Returns a handler for an endless answer, and an event for the end of its connection."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(head)
        try:
            while True:
                writer.write(piece())
                await writer.drain()
        except ConnectionError:
            closed.set()

    return handle


async def drained(reader: asyncio.StreamReader) -> None:
    """Reads to the end without storing the data."""
    with suppress(ConnectionError):
        while await reader.read(MIB):
            pass


ENDLESS = {
    "stream": (STREAM_HEAD, lambda: chunk(b": " + b"x" * MIB + b"\n\n"), STREAMED, f"more than {LARGEST} bytes"),
    "one event": (STREAM_HEAD, lambda: chunk(b"data: " + b"x" * MIB), None, f"more than {LARGEST} bytes"),
    "refusal": (b"HTTP/1.1 400 Bad\r\n\r\n", lambda: b"x" * MIB, None, f"more than {LARGEST} bytes"),
    "head": (b"HTTP/1.1 200 OK\r\n", lambda: b"a: b\r\n" * 4096, None, f"more than {LONGEST_HEAD} bytes"),
    "early hints": (b"", lambda: b"HTTP/1.1 103 Early\r\na: b\r\n\r\n" * 1024, None, f"more than {LONGEST_HEAD} bytes"),
}


@pytest.mark.parametrize("kind", ENDLESS)
async def test_an_answer_without_an_end(tap: Tap, kind: str) -> None:
    """Bodies and heads are limited. Beyond the limit the call ends with a fault, and the backend connection is closed."""
    head, piece, body, sentence = ENDLESS[kind]
    id, closed = await tap.open(), asyncio.Event()
    async with backend(endless(head, piece, closed)) as url, agent(tap.port) as caller:  # type: ignore[arg-type]
        await tap.point_at(url)
        await caller.send(request(id, body=body) if body else request(id))
        await asyncio.gather(drained(caller.reader) if body else read_message(caller.reader), closed.wait())
    (call,) = await tap.close(id)

    assert "too_large" == call.error_kind
    assert sentence in call.error


def peak(pid: int) -> int:
    """Returns the peak memory of a process in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) >> 10


@cache
def bomb() -> bytes:
    return gzip.compress(bytes(500 * MIB), compresslevel=9)


@pytest.mark.parametrize("kind", ["stream", "whole", "refusal"])
async def test_a_bomb(start_tap: StartTap, kind: str) -> None:
    """Half a megabyte that decompresses to 500 MB ends its call, and the tap never stores more than the limit."""
    child = start_tap(token=TOKEN)
    ports = child.ready(TapListening)
    control = await TapControl.connect(ports.control_port, TOKEN)
    tap = Tap(child, ports, control)
    id, packed = await tap.open(), bomb()
    coding = "content-encoding: gzip\r\n"
    status = 400 if kind == "refusal" else 200
    answer = response(packed, status, headers=coding + "content-type: text/event-stream\r\n" * (kind == "stream"))
    async with backend(answering(answer)) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        await caller.send(request(id))
        got = await read_message(caller.reader)
    (call,) = await tap.close(id)
    most = peak(child.process.pid)
    control.close()

    assert (502, "too_large", "too_large") == (got.status, got.json["error"]["code"], call.error_kind)
    assert f"HTTP {status}: the answer has more than {LARGEST} bytes when decompressed" == call.error
    assert most < 400


@pytest.mark.parametrize("kind", [b"application/json", b"text/event-stream"])
def test_slices(kind: bytes) -> None:
    """A large answer is decompressed in slices, between which the event loop runs. In the end it is complete."""
    text = {"choices": [{"message": {"content": "x" * (5 * SLICE)}, "finish_reason": "stop"}]}
    body = (
        json.dumps(text).encode()
        if kind == b"application/json"
        else b": " + b"x" * (5 * SLICE) + b"\n\n" + event({"content": "y"}, "stop") + DONE
    )
    answer = BackendAnswer(DIALECTS["/chat/completions"], 200, [(b"content-type", kind), (b"content-encoding", b"gzip")])
    answer.take(NetworkRead(1, None, gzip.compress(body)))

    turns = 0
    while answer.decompress():
        turns += 1
    answer.end(is_complete=True)

    assert 4 <= turns <= 6
    assert (None, "stop") == (answer.reader.error_kind, answer.reader.finish_reason)


@pytest.mark.slow
def test_events_without_an_end() -> None:
    """The number of events is limited, too, because each of them is stored, however small."""
    answer = BackendAnswer(DIALECTS["/chat/completions"], 200, [(b"content-type", b"text/event-stream")])
    several = event({"content": "x"}) * 4096

    reads = 0
    while not answer.excess:
        answer.take(NetworkRead(reads, None, several))
        reads += 1

    assert f"the answer has more than {MOST_EVENTS} events" == answer.excess
    assert "too_large" == answer.reader.error_kind
    assert reads <= MOST_EVENTS // 4096 + BATCH
