"""Streams on their way to an agent: each byte is forwarded as it arrives, and events that arrive alone have their own timestamp."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import sys
import time
from pathlib import Path

import pytest

from tests.certificates import needs_openssl
from tests.tap.peers import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    STREAMED,
    Tap,
    agent,
    answering,
    backend,
    chunk,
    chunks,
    event,
    read_message,
    request,
    said,
)

WORDS = [event({"role": "assistant", "content": ""}), *(event({"content": word}) for word in "abcdef"), event({}, "stop")]


async def test_events_one_by_one(tap: Tap) -> None:
    """An agent gets each event before the backend sends the next one, with a timestamp between the two."""
    id = await tap.open()
    said: asyncio.Queue[bytes] = asyncio.Queue()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(STREAM_HEAD)
        while data := await said.get():
            writer.write(chunk(data))
        writer.write(LAST_CHUNK)

    times = [time.monotonic_ns()]
    async with backend(handle) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        await caller.send(request(id, body=STREAMED))
        await caller.reader.readuntil(b"\r\n\r\n")
        pieces = chunks(caller.reader)
        for data in WORDS:
            said.put_nowait(data)
            assert data == await anext(pieces)
            times.append(time.monotonic_ns())
        said.put_nowait(DONE)
        said.put_nowait(b"")
        assert [DONE] == [piece async for piece in pieces]
    (call,) = await tap.close(id)

    assert ["role", *["content"] * 6, "finish"] == [each.kind for each in call.chunks]
    assert [True] * len(WORDS) == [each.own_stamp for each in call.chunks]
    assert all(before < each.at_ns < after for before, each, after in zip(times, call.chunks, times[1:], strict=False))
    assert (None, 6, "chunks", "stop") == (call.error_kind, call.completion_tokens, call.token_source, call.finish_reason)


async def test_stamps_of_the_head_and_of_the_connection(tap: Tap) -> None:
    """A call has the time of the head, apart from that of the first event, and the time of the last data before it on its connection."""
    id = await tap.open()
    go = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_message(reader)
            writer.write(STREAM_HEAD)
            await go.wait()
            go.clear()
            writer.write(chunk(WORDS[1] + WORDS[-1] + DONE) + LAST_CHUNK)

    async with backend(handle) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        for _ in range(2):
            await caller.send(request(id, body=STREAMED))
            await caller.reader.readuntil(b"\r\n\r\n")
            go.set()
            assert [WORDS[1] + WORDS[-1] + DONE] == [piece async for piece in chunks(caller.reader)]
    first, second = await tap.close(id)

    assert first.idle_since_ns is None
    assert first.chunks[-1].at_ns == second.idle_since_ns
    for call in (first, second):
        assert call.sent_ns is not None and call.head_ns is not None
        assert call.sent_ns < call.head_ns < call.chunks[0].at_ns
    assert second.sent_ns is not None and second.sent_ns > first.chunks[-1].at_ns


async def test_events_that_come_together(tap: Tap) -> None:
    """Events of one read share its timestamp, and only the last one is marked as having its own."""
    id = await tap.open()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(STREAM_HEAD + chunk(WORDS[0] + WORDS[1] + WORDS[2][:9]) + chunk(WORDS[2][9:] + WORDS[-1]) + LAST_CHUNK)

    async with backend(handle) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        await caller.ask(request(id))
    (call,) = await tap.close(id)

    assert [False, False, False, True] == [each.own_stamp for each in call.chunks]
    assert 1 == len({each.at_ns for each in call.chunks})


async def test_bytes_are_not_changed(tap: Tap) -> None:
    """A stream reaches the agent byte for byte, even if reads split characters, comments and line ends."""
    id = await tap.open()
    body = "\ufeff: hello \N{GRINNING FACE}\r\n\r\nid: 7\r\ndata: {}\r\r\n\n".encode() + b"\xff" + b"".join(WORDS) + DONE

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(STREAM_HEAD)
        for place in range(0, len(body), 7):
            writer.write(chunk(body[place : place + 7]))
            await asyncio.sleep(0)
        writer.write(LAST_CHUNK)

    async with backend(handle) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        answer = await caller.ask(request(id, body=STREAMED))

    assert body == answer.body


@pytest.mark.skipif(sys.platform != "linux", reason="needs the stamps of Linux")
@pytest.mark.parametrize("body", [None, STREAMED])
async def test_events_that_arrive_while_the_tap_is_suspended(tap: Tap, body: bytes | None) -> None:
    """Timestamps are close to the send, however late the tap reads. Events of one read share the timestamp of the last one."""
    id, pid = await tap.open(), tap.child.process.pid
    heard, go = asyncio.Event(), asyncio.Event()
    sent = [0, 0]

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(STREAM_HEAD + chunk(WORDS[0]))
        heard.set()
        await go.wait()
        writer.write(chunk(WORDS[1]))
        sent[0] = time.monotonic_ns()
        writer.write(chunk(WORDS[2]))
        sent[1] = time.monotonic_ns()
        await asyncio.sleep(0.3)
        os.kill(pid, signal.SIGCONT)
        await asyncio.sleep(0.05)
        writer.write(chunk(WORDS[-1]) + LAST_CHUNK)

    async with backend(handle) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        await caller.send(request(id, body=body))
        await heard.wait()
        await asyncio.sleep(0.1)
        os.kill(pid, signal.SIGSTOP)
        try:
            go.set()
            await caller.answer()
        finally:
            os.kill(pid, signal.SIGCONT)
    (call,) = await tap.close(id)
    role, first, second, finish = call.chunks

    assert ("kernel", None) == (call.stamp, call.error_kind)
    assert [True, False, True, True] == [each.own_stamp for each in call.chunks]
    assert first.at_ns == second.at_ns
    assert second.at_ns < sent[1] + 200_000_000
    assert sent[0] - 1_000_000 < second.at_ns
    assert second.lag_ns is not None
    assert second.lag_ns >= 99_000_000
    assert second.lag_ns == first.lag_ns
    assert all(each.lag_ns is not None for each in (role, finish))
    assert role.at_ns < second.at_ns < finish.at_ns


@needs_openssl
async def test_stamps_of_tls(tap: Tap, certificates: Path, tls: ssl.SSLContext) -> None:
    """With TLS the packet of an event is unknown, so the timestamp is that of the read, and is marked so."""
    id = await tap.open()
    async with backend(answering(said()), ssl=tls) as url, agent(tap.port) as caller:
        await tap.point_at(url, ca_file=str(certificates / "ca.pem"))
        await caller.ask(request(id))
    (call,) = await tap.close(id)

    assert ("user", {None}) == (call.stamp, {each.lag_ns for each in call.chunks})
