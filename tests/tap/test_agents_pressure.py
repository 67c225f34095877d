"""Slow readers, and bodies larger than what the tap may store."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.tap.peers import (
    CHAT,
    LAST_CHUNK,
    STREAM_HEAD,
    STREAMED,
    Message,
    Tap,
    agent,
    answering,
    backend,
    chunk,
    chunks,
    event,
    read_message,
    request,
    response,
    said,
    text_of,
    until,
)


def resident(pid: int) -> int:
    """Returns the resident memory of a process in MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 >> 20


async def test_a_slow_reader(tap: Tap) -> None:
    """An agent that does not read delays only its own backend connection. When it reads, it gets everything."""
    id = await tap.open()
    block, sent = b": " + b"x" * 65_532 + b"\n\n", 0
    blocks, last = 800, event({"content": "x"}, "stop")

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await read_message(reader)
        writer.write(STREAM_HEAD)
        for _ in range(blocks):
            writer.write(chunk(block))
            await writer.drain()
            sent += 1
        writer.write(chunk(last) + LAST_CHUNK)

    async def stands_still() -> bool:
        before = sent
        await asyncio.sleep(0.2)
        return 0 < before == sent

    async with backend(handle) as url, agent(tap.port) as slow:
        await tap.point_at(url)
        await slow.send(request(id, body=STREAMED))
        await until(stands_still, "the backend to be held up")
        assert sent < blocks
        async with agent(tap.port) as other:
            assert 404 == (await other.ask(request("nobody"))).status
        await slow.reader.readuntil(b"\r\n\r\n")
        total = sum([len(each) async for each in chunks(slow.reader)])
    (call,) = await tap.close(id)

    assert len(block) * blocks + len(last) == total
    assert call.error_kind is None


async def test_a_slow_reader_of_answers_that_are_put_together(tap: Tap) -> None:
    """A call starts only after the agent has read its last answers, so that no timestamp is late. In the end all are answered."""
    id = await tap.open()
    text, count = "x" * 1_000_000, 12
    requests: list[Message] = []
    async with backend(answering(said(text), requests=requests)) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        await caller.send(request(id) * count)
        await until(lambda: len(requests) >= 1, "the first call")
        got = [len(text_of(await caller.answer())) for _ in range(count)]

    assert [len(text)] * count == got
    assert count == len(requests)


async def test_requests_are_not_read_ahead(tap: Tap) -> None:
    """During a call the tap reads only a little of the next requests. In the end all are answered."""
    id = await tap.open()
    heard, go = asyncio.Event(), asyncio.Event()
    large = request(id, "/embeddings", b"x" * 1_000_000)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_message(reader)
            heard.set()
            await go.wait()
            writer.write(response(b"x"))

    async with backend(handle) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        await caller.send(request(id, "/embeddings", b"first"))
        await heard.wait()
        memory = resident(tap.child.process.pid)
        sending = asyncio.create_task(caller.send(large * 60))
        done, _ = await asyncio.wait([sending], timeout=0.5)
        assert not done
        assert resident(tap.child.process.pid) - memory < 20
        go.set()
        got = [(await caller.answer()).body for _ in range(61)]
        await sending

    assert [b"x"] * 61 == got


async def test_large_bodies(tap: Tap) -> None:
    """10 MB pass in both directions, even to a backend that reads slowly."""
    id = await tap.open()
    body = json.dumps({**CHAT, "user": "x" * 10_000_000}).encode()
    sizes = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.1)
        sizes.append(len((await read_message(reader)).json["user"]))
        writer.write(said("y" * 10_000_000))

    async with backend(handle, limit=1 << 14) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        answer = await caller.ask(request(id, body=body))
    (call,) = await tap.close(id)

    assert ([10_000_000], 10_000_000) == (sizes, len(text_of(answer)))
    assert len(body) == call.request_bytes
    assert call.sent_ns is not None and call.received_ns < call.sent_ns < call.chunks[0].at_ns


async def test_a_request_without_end(tap: Tap) -> None:
    """A request beyond the maximum size is refused and not stored."""
    id = await tap.open()
    async with agent(tap.port) as caller:
        caller.writer.write(f"POST /r/{id}/v1 HTTP/1.1\r\ncontent-length: {1 << 40}\r\n\r\n".encode())
        answering = asyncio.create_task(caller.answer())
        while not answering.done():
            caller.writer.write(b"x" * (1 << 22))
            await asyncio.sleep(0)
            await asyncio.wait([answering, asyncio.create_task(caller.writer.drain())], return_when=asyncio.FIRST_COMPLETED)
        answer = await answering
        caller.reset()

    assert (413, "close") == (answer.status, answer.headers["connection"])


async def test_a_long_rollout(tap: Tap) -> None:
    """Only the record of a finished call is stored, however long the rollout runs."""
    id = await tap.open()
    body = json.dumps({**CHAT, "user": "x" * 500_000}).encode()
    async with backend(answering(said("y" * 500_000))) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        await caller.ask(request(id, body=body))
        memory = resident(tap.child.process.pid)
        for _ in range(100):
            await caller.ask(request(id, body=body))

    assert resident(tap.child.process.pid) - memory < 40
    assert 101 == len(await tap.close(id))
