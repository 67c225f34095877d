"""Streams on their way to an agent that streams: every byte as it comes, and a stamp of its own for what came alone."""

from __future__ import annotations

import asyncio
import time

from tests.tap.peers import DONE, LAST_CHUNK, STREAM_HEAD, STREAMED, Tap, agent, backend, chunk, chunks, event, read_message, request

WORDS = [event({"role": "assistant", "content": ""}), *(event({"content": word}) for word in "abcdef"), event({}, "stop")]


async def test_events_one_by_one(tap: Tap) -> None:
    """An agent has each event before the backend says the next one, and its stamp lies between the two."""
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


async def test_events_that_come_together(tap: Tap) -> None:
    """Events of one read share its stamp, and only the last of them is said to have it for itself."""
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


async def test_bytes_are_not_touched(tap: Tap) -> None:
    """A stream reaches the agent byte for byte, where its pieces cut characters, comments and line ends."""
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
