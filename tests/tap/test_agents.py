"""Connections of agents: requests in all forms that HTTP allows, and bytes that are not a request."""

from __future__ import annotations

import asyncio

import pytest

from tests.tap.peers import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    STREAMED,
    Message,
    Tap,
    agent,
    answering,
    backend,
    chunk,
    event,
    read_message,
    request,
    response,
    said,
    shut,
    text_of,
)


async def test_a_request_bit_by_bit(tap: Tap) -> None:
    """A request may arrive byte by byte. Its time of receipt is that of the last byte."""
    id = await tap.open()
    async with backend(answering(said())) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        data = request(id)
        for place in range(len(data) - 1):
            await caller.send(data[place : place + 1])
            await asyncio.sleep(0)
        assert 0 == await tap.in_flight()
        answer = await caller.ask(data[-1:])

    assert (200, "Hi") == (answer.status, text_of(answer))


async def test_a_chunked_request(tap: Tap) -> None:
    """A chunked body reaches the backend completely, with its length and without its trailers."""
    id = await tap.open()
    requests: list[Message] = []
    head = f"POST /r/{id}/v1/embeddings HTTP/1.1\r\nhost: tap\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    async with backend(answering(response(b"x"), requests=requests)) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        await caller.ask(head + chunk(b"ab") + chunk(b"cde") + b"0\r\nx-trailer: 1\r\n\r\n")

    assert b"abcde" == requests[0].body
    assert ("5", None, None) == tuple(requests[0].headers.get(name) for name in ("content-length", "transfer-encoding", "x-trailer"))


async def test_expect_continue(tap: Tap) -> None:
    """A client with `Expect: 100-continue` gets `100 Continue`. The header does not reach the backend."""
    id = await tap.open()
    requests: list[Message] = []
    data = request(id, "/embeddings", b"body", headers="Expect: 100-Continue\r\n")
    async with backend(answering(response(b"x"), requests=requests)) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        went_on = await caller.ask(data[:-4])
        answer = await caller.ask(data[-4:])

    assert "HTTP/1.1 100 Continue" == went_on.first
    assert b"x" == answer.body
    assert (b"body", False) == (requests[0].body, "expect" in requests[0].headers)


async def test_expect_continue_behind_another_request(tap: Tap) -> None:
    """`100 Continue` is never sent in the middle of an answer."""
    id = await tap.open()
    heard, go = asyncio.Event(), asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(STREAM_HEAD + chunk(b"a"))
        heard.set()
        await go.wait()
        writer.write(chunk(b"b") + LAST_CHUNK)
        await read_message(reader)
        writer.write(response(b"second"))

    data = request(id, "/embeddings", b"body", headers="Expect: 100-continue\r\n")
    async with backend(handle) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        await caller.send(request(id, "/models", method="GET") + data[:-4])
        await heard.wait()
        go.set()
        got = [await caller.answer(), await caller.answer(), await caller.ask(data[-4:])]

    assert [b"ab", b"", b"second"] == [each.body for each in got]
    assert "HTTP/1.1 100 Continue" == got[1].first


async def test_pipelining(tap: Tap) -> None:
    """Pipelined requests of all kinds are answered one after the other, in order. Records are in order of receipt."""
    id = await tap.open()
    requests: list[Message] = []
    asked = request(id) + request("nobody") + request(id, "/models", method="GET") + request(id, body=STREAMED) + request(id)
    answers = answering(said("1"), response(b"2"), said("3"), said("4"), requests=requests)
    async with backend(answers) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        await caller.send(asked)
        got = [await caller.answer() for _ in range(5)]
    calls = await tap.close(id)

    assert [200, 404, 200, 200, 200] == [each.status for each in got]
    assert ("1", b"2", True, "4") == (text_of(got[0]), got[2].body, b'"3"' in got[3].body, text_of(got[4]))
    assert ["POST", "GET", "POST", "POST"] == [each.first.split()[0] for each in requests]
    assert [False, True, False] == [call.streamed for call in calls]
    assert sorted(call.received_ns for call in calls) == [call.received_ns for call in calls]


async def test_many_refusals_at_once(tap: Tap) -> None:
    """Thousands of refused requests in one write are answered one by one."""
    async with agent(tap.port) as caller:
        caller.writer.write(request("nobody", "/models", method="GET") * 3000)
        got = [(await caller.answer()).status for _ in range(3000)]

    assert {404} == set(got)


async def test_connection_close(tap: Tap) -> None:
    """An agent that sends `Connection: close` gets its answer, and then the end. What it sends after that request is ignored."""
    id = await tap.open()
    async with backend(answering(said())) as url:
        await tap.point_at(url)
        for data in (request(id, headers="Connection: close\r\n"), request("nobody", headers="Connection: close\r\n")):
            async with agent(tap.port) as caller:
                answer = await caller.ask(data + b"more" + request(id))
                rest = await caller.rest()

            assert ("close", b"") == (answer.headers["connection"], rest)
    assert 1 == len(await tap.close(id))


async def test_http_1_0(tap: Tap) -> None:
    """An HTTP/1.0 agent gets no chunks. Its answer ends with the connection, and a truncated one with a reset."""
    id = await tap.open()
    cut = STREAM_HEAD + chunk(event({"content": "x"})) + b"zz"
    data = request(id, body=STREAMED).replace(b"HTTP/1.1", b"HTTP/1.0")
    async with backend(answering(said(), cut)) as url:
        await tap.point_at(url)
        async with agent(tap.port) as caller:
            await caller.send(data)
            whole = await caller.rest()
        async with agent(tap.port) as caller:
            await caller.send(data)
            with pytest.raises(ConnectionResetError):
                await caller.reader.read(-1)

    assert b"transfer-encoding" not in whole
    assert whole.endswith(DONE)
    assert [None, "cut"] == [call.error_kind for call in await tap.close(id)]


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_an_offer_of_http_2(tap: Tap, method: str) -> None:
    """Clients that offer HTTP/2, as Java's does in each first request, are answered in HTTP/1.1, and so are later requests."""
    id = await tap.open()
    requests: list[Message] = []
    data = request(
        id,
        "/embeddings" if method == "POST" else "/models",
        b"body",
        method,
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n",
    )
    async with backend(answering(response(b"x"), requests=requests)) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        await caller.send(data * 3)
        got = [(await caller.answer()).body for _ in range(3)]

    assert [b"x"] * 3 == got
    assert {"host", "content-length", "accept-encoding"} == {name for each in requests for name in each.headers}
    assert {b"body" if method == "POST" else b""} == {each.body for each in requests}


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\ncontent-length: x\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
    ],
)
async def test_bytes_that_are_not_a_request(tap: Tap, data: bytes) -> None:
    """Bytes that are not a request get a 400 with the reason, and the connection ends. Requests before them are answered first."""
    id = await tap.open()
    async with backend(answering(said())) as url:
        await tap.point_at(url)
        async with agent(tap.port) as caller:
            await caller.send(data)
            alone, rest = await caller.answer(), await caller.rest()
        async with agent(tap.port) as caller:
            await caller.send(request(id) + data)
            before, behind = await caller.answer(), await caller.answer()

    assert (400, "close", b"") == (alone.status, alone.headers["connection"], rest)
    assert alone.json["error"]["message"].startswith("not an HTTP request: ")
    assert ("Hi", 400) == (text_of(before), behind.status)


async def test_connect_is_refused(tap: Tap) -> None:
    """CONNECT is refused."""
    async with agent(tap.port) as caller:
        answer = await caller.ask(b"CONNECT example.org:443 HTTP/1.1\r\nhost: example.org\r\n\r\nmore")

    message = "CONNECT is not supported; send requests to the address in OPENAI_BASE_URL"
    assert (405, message) == (answer.status, answer.json["error"]["message"])


async def test_a_silent_connection(tap: Tap) -> None:
    """A connection without any request can be closed without effect."""
    _, writer = await asyncio.open_connection("127.0.0.1", tap.port)
    await shut(writer)

    assert 0 == await tap.in_flight()
