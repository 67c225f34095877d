"""Agents that disconnect, and rollouts that end, during a call."""

from __future__ import annotations

import asyncio

import pytest

from tests.tap.peers import (
    DONE,
    OPENING,
    STREAM_HEAD,
    STREAMED,
    Tap,
    agent,
    answering,
    backend,
    chunk,
    event,
    read_message,
    request,
    said,
    until,
)


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_agent_that_leaves(tap: Tap, streamed: bool) -> None:
    """When an agent disconnects, its backend connection is closed, so that the backend stops, and the record has the reason."""
    id = await tap.open()
    heard, left = asyncio.Event(), asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(STREAM_HEAD + chunk(event({"content": "x"})))
        heard.set()
        await reader.read()
        left.set()

    async with backend(handle) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        await caller.send(request(id, body=STREAMED if streamed else None) + request(id))
        await heard.wait()
        caller.reset()
        await asyncio.wait_for(left.wait(), 20)
        await until(tap.is_idle, "the end of the call")
    (call,) = await tap.close(id)

    assert ("client_gone", "the agent closed the connection before the answer was complete") == (call.error_kind, call.error)
    assert (200, ["content"], 1, "chunks") == (
        call.http_status,
        [each.kind for each in call.chunks],
        call.completion_tokens,
        call.token_source,
    )


async def test_an_agent_that_leaves_at_the_end(tap: Tap) -> None:
    """`[DONE]` ends a call. An SDK that closes its connection there has not disconnected early."""
    id = await tap.open()
    async with backend(answering(STREAM_HEAD + chunk(OPENING + event({}, "stop") + DONE))) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        await caller.send(request(id, body=STREAMED))
        await caller.reader.readuntil(DONE)
        caller.reset()
        await until(tap.is_idle, "the end of the call")
    (call,) = await tap.close(id)

    assert (None, "stop") == (call.error_kind, call.finish_reason)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (STREAM_HEAD + chunk(event({"content": "x"}) + b'data: {"error": {"message": "boom"}}\n\n'), "error_event"),
        (b"HTTP/1.1 500 Oops\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\nboom", "server_error"),
    ],
    ids=["error-event", "500"],
)
async def test_an_agent_that_leaves_because_of_a_fault(tap: Tap, answer: bytes, kind: str) -> None:
    """A fault of the backend remains the result, even if the agent disconnects before the end of the answer."""
    id = await tap.open()
    async with backend(answering(answer)) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        await caller.send(request(id, body=STREAMED))
        await caller.reader.readuntil(b"boom")
        caller.reset()
        await until(tap.is_idle, "the end of the call")
    (call,) = await tap.close(id)

    assert (kind, True) == (call.error_kind, "boom" in call.error)


async def test_an_agent_that_leaves_in_the_middle_of_its_request(tap: Tap) -> None:
    """An incomplete request is not recorded as a call."""
    id = await tap.open()
    async with backend(answering(said())) as url:
        await tap.point_at(url)
        async with agent(tap.port) as caller:
            await caller.send(request(id)[:-5])
        async with agent(tap.port) as caller:
            assert 200 == (await caller.ask(request(id))).status

    assert 1 == len(await tap.close(id))


async def test_the_end_of_a_rollout(tap: Tap) -> None:
    """Closing an address aborts calls in flight. Agent and backend see their connections end, and all calls are returned."""
    id = await tap.open()
    heard, left = asyncio.Event(), asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answering_once(reader, writer)
        await read_message(reader)
        heard.set()
        await reader.read()
        left.set()

    async def answering_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(said())

    async with backend(handle) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        await caller.ask(request(id))
        await caller.send(request(id) + request(id))
        await heard.wait()
        calls = await tap.close(id)
        rest = await caller.rest()
        await asyncio.wait_for(left.wait(), 20)

    assert b"" == rest
    assert [(None, ""), ("client_gone", "the rollout ended before the answer was complete")] == [
        (call.error_kind, call.error) for call in calls
    ]
