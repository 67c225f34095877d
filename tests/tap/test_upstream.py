"""Connections to the backend: which of them are reused, and how long they are kept. Idle ones are tested in another file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from tests.tap.peers import (
    CHAT,
    LAST_CHUNK,
    OPENING,
    STREAM_HEAD,
    Handler,
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
    until,
)

Connection = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def connections(*handlers: Connection) -> tuple[Handler, list[int]]:
    """Returns a list of connections and a handler. The handler uses the n-th of `handlers` for the n-th connection, then the last one."""
    seen: list[int] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(len(seen))
        await handlers[min(len(seen), len(handlers)) - 1](reader, writer)

    return handle, seen


async def answer_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_message(reader)
    writer.write(said())


async def test_connections_are_kept(tap: Tap) -> None:
    """Consecutive calls share one connection. Simultaneous calls have one each, and later calls reuse them."""
    id = await tap.open()
    heard, go = 0, asyncio.Event()

    async def waiting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal heard
        while True:
            await read_message(reader)
            heard += 1
            await go.wait()
            writer.write(said())

    handle, seen = connections(waiting)
    async with backend(handle) as url, agent(tap.port) as one, agent(tap.port) as two:
        await tap.point_at(url)
        await one.send(request(id))
        await two.send(request(id))
        await until(lambda: heard == 2, "both calls")
        go.set()
        assert [200, 200] == [(await one.answer()).status, (await two.answer()).status]
        for _ in range(5):
            await one.ask(request(id))

    assert [0, 1] == seen


async def test_a_connection_that_was_closed_while_it_lay_idle(tap: Tap) -> None:
    """A backend may close idle connections. The next call opens a new one."""
    id = await tap.open()
    handle, seen = connections(answer_and_close)
    async with backend(handle) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        statuses = [(await caller.ask(request(id))).status for _ in range(5)]
    calls = await tap.close(id)

    assert [200] * 5 == statuses
    assert [0, 1, 2, 3, 4] == seen
    assert [None] * 5 == [call.error_kind for call in calls]


async def test_an_answer_to_nothing(tap: Tap) -> None:
    """Data that a backend sends between two calls, for example a 408, belongs to none of them."""
    id = await tap.open()
    told, dropped = asyncio.Event(), asyncio.Event()

    async def chatty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(said("1"))
        await writer.drain()
        await told.wait()
        writer.write(response(b"too late", 408))
        await reader.read()
        dropped.set()

    handle, seen = connections(chatty, answering(said("2")))
    async with backend(handle) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        first = await caller.ask(request(id))
        told.set()
        await dropped.wait()
        second = await caller.ask(request(id))

    assert ["1", "2"] == [each.json["choices"][0]["message"]["content"] for each in (first, second)]
    assert [0, 1] == seen


@pytest.mark.parametrize("surplus", [b"nonsense", b"\r\nx", response(b"another")])
async def test_more_than_the_answer(tap: Tap, surplus: bytes) -> None:
    """Data after an answer is not part of it, and the connection is not reused."""
    id = await tap.open()
    handle, seen = connections(answering(response(b"1") + surplus))
    async with backend(handle) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        got = [(await caller.ask(request(id, "/embeddings"))).body for _ in range(2)]

    assert [b"1", b"1"] == got
    assert [0, 1] == seen


async def test_connection_close_of_the_backend(tap: Tap) -> None:
    """A connection that the backend announces to close is not reused."""
    id = await tap.open()
    handle, seen = connections(answering(response(b"1", headers="Connection: close\r\n")))
    async with backend(handle) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        got = [await caller.ask(request(id, "/embeddings")) for _ in range(2)]

    assert [(b"1", False)] * 2 == [(each.body, "connection" in each.headers) for each in got]
    assert [0, 1] == seen


async def test_an_answer_before_the_request_is_whole(tap: Tap) -> None:
    """A backend may answer without reading the whole request.

    The answer counts, no send time is recorded, and the connection is not reused.
    """
    id = await tap.open()

    async def impatient(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response(b'{"error": "too large"}', 413))
        await writer.drain()
        await asyncio.sleep(3600)

    handle, seen = connections(impatient, answering(said()))
    body = json.dumps({**CHAT, "user": "x" * 30_000_000}).encode()
    async with backend(handle, limit=1 << 12) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        refused = await caller.ask(request(id, body=body))
        accepted = await caller.ask(request(id))
    call, _ = await tap.close(id)

    assert (413, 200) == (refused.status, accepted.status)
    assert ("http_status", "HTTP 413: too large", None) == (call.error_kind, call.error, call.sent_ns)
    assert [0, 1] == seen


async def test_a_request_that_is_not_whole_when_the_answer_begins(tap: Tap) -> None:
    """If the answer begins before the request is complete, no send time is recorded, so that no timestamp precedes it."""
    id = await tap.open()
    body = json.dumps({**CHAT, "stream": True, "stream_options": {"include_usage": True}, "user": "x" * 30_000_000}).encode()
    go = asyncio.Event()

    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"%d" % len(body) in head
        writer.write(STREAM_HEAD + chunk(OPENING))
        await go.wait()
        await reader.readexactly(len(body))
        writer.write(chunk(event({}, "stop")) + LAST_CHUNK)

    async with backend(early, limit=1 << 12) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        await caller.send(request(id, body=body))
        pieces = chunks(caller.reader)
        await caller.reader.readuntil(b"\r\n\r\n")
        assert OPENING == await anext(pieces)
        go.set()
        assert [event({}, "stop")] == [piece async for piece in pieces]
    (call,) = await tap.close(id)

    assert (None, None) == (call.error_kind, call.sent_ns)


async def test_connections_to_a_backend_that_is_left(tap: Tap) -> None:
    """Idle connections are closed when another backend is set."""
    id = await tap.open()
    dropped = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(said())
        await reader.read()
        dropped.set()

    async with backend(handle) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        await caller.ask(request(id))
        await tap.point_at(url)
        await asyncio.wait_for(dropped.wait(), 20)


async def test_another_backend(tap: Tap) -> None:
    """After another backend is set, new calls go there. A call in flight ends at the old one."""
    id = await tap.open()
    heard, go, dropped = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        heard.set()
        await go.wait()
        writer.write(said("old"))
        await reader.read()
        dropped.set()

    async with backend(slow) as old, backend(answering(said("new"))) as new, agent(tap.port) as one, agent(tap.port) as two:
        await tap.point_at(old)
        await one.send(request(id))
        await heard.wait()
        await tap.point_at(new)
        second = await two.ask(request(id))
        go.set()
        first = await one.answer()
        await dropped.wait()

    assert ["old", "new"] == [each.json["choices"][0]["message"]["content"] for each in (first, second)]
