"""What reaches the backend and what comes back, for all kinds of requests."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest

from pytest_agentbench.records import OUTPUT_KINDS, Json
from pytest_agentbench.tap.client import TapControl
from pytest_agentbench.tap.protocol import TapListening
from tests.tap.conftest import TOKEN, StartTap
from tests.tap.peers import (
    CHAT,
    LAST_CHUNK,
    STREAM_HEAD,
    Message,
    Tap,
    agent,
    answering,
    backend,
    chunk,
    read_message,
    request,
    response,
    said,
)

MODELS = b'{"object": "list", "data": []}'


async def test_addresses_that_may_call(tap: Tap) -> None:
    """An unknown address gets 404, one without a backend 503, and one of an ended rollout 410. The connection stays open."""
    id = await tap.open()
    requests: list[Message] = []
    async with backend(answering(response(MODELS), requests=requests)) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        unknown = [
            await caller.ask(request("nobody", "/models", method="GET")),
            await caller.ask(b"GET /models HTTP/1.1\r\nhost: a\r\n\r\n"),
        ]
        known = await caller.ask(request(id, "/models", method="GET"))
        await tap.close(id)
        closed = await caller.ask(request(id))

    assert [404, 404, 200, 410] == [answer.status for answer in (*unknown, known, closed)]
    note = "the status 410 comes from agentbench's tap, not from the backend"
    ended = {"message": "the rollout of this address has ended", "type": "agentbench_tap", "code": None, "note": note}
    assert ended == closed.json["error"]
    assert 1 == len(requests)


async def test_no_backend_yet(start_tap: StartTap) -> None:
    """Before a backend is set, calls get a 503."""
    child = start_tap(token=TOKEN)
    ports = child.ready(TapListening)
    tap = Tap(child, ports, await TapControl.connect(ports.control_port, TOKEN))
    async with agent(tap.port) as caller:
        answer = await caller.ask(request(await tap.open()))
    tap.control.close()

    assert (503, "the backend is not ready; repeat the request later") == (answer.status, answer.json["error"]["message"])


@pytest.mark.parametrize(
    ("base", "path", "target"),
    [
        ("", "/v1/models", "/models"),
        ("/v1", "/v1/models", "/v1/models"),
        ("/v1/", "/v1/models", "/v1/models"),
        ("/openai/deployments/x", "/v1/models?a=1&b=%20/", "/openai/deployments/x/models?a=1&b=%20/"),
        ("/openai?api-version=7", "/v1/models", "/openai/models?api-version=7"),
        ("/openai?api-version=7", "/v1/models?a=1", "/openai/models?a=1&api-version=7"),
        ("/v1", "/models", "/v1/models"),
        ("/v1", "/v1/models/v1", "/v1/models/v1"),
    ],
)
async def test_paths(tap: Tap, base: str, path: str, target: str) -> None:
    """The path below the rollout's address is appended to the backend's path, with its query and that of the backend's URL."""
    id = await tap.open()
    requests: list[Message] = []
    async with backend(answering(response(MODELS), requests=requests)) as url, agent(tap.port) as caller:
        await tap.point_at(url + base)
        answer = await caller.ask(f"GET /r/{id}{path} HTTP/1.1\r\nhost: tap\r\n\r\n".encode())

    assert MODELS == answer.body
    assert f"GET {target} HTTP/1.1" == requests[0].first


async def test_headers_of_requests(tap: Tap) -> None:
    """The tap writes the headers of its own connection, drops secrets of the agent and headers for the tap, and forwards the rest."""
    id = await tap.open()
    requests: list[Message] = []
    sent = (
        "Authorization: Bearer agent\r\nX-Api-Key: agent\r\nAccept-Encoding: gzip\r\nConnection: keep-alive, X-Mine\r\nX-Mine: 1\r\n"
        "TE: trailers\r\nKeep-Alive: timeout=5\r\nX-Agentbench-Called-Ns: 5\r\n"
        "Upgrade-Insecure-Requests: 1\r\nX-Request-Id: abc\r\nX-Empty:\r\nContent-Type: a/b\r\n"
    )
    async with backend(answering(response(MODELS), requests=requests)) as url, agent(tap.port) as caller:
        await tap.point_at(url + "/v1", api_key="secret")
        await caller.ask(request(id, "/embeddings", b"body", headers=sent))
        await tap.point_at(url + "/v1")
        await caller.ask(request(id, "/embeddings", b"body", headers=sent))

    expected = {
        "host": url.removeprefix("http://"),
        "content-length": "4",
        "accept-encoding": "identity",
        "authorization": "Bearer secret",
        "upgrade-insecure-requests": "1",
        "x-request-id": "abc",
        "x-empty": "",
        "content-type": "a/b",
    }
    assert expected == requests[0].headers
    del expected["authorization"]
    assert expected == requests[1].headers
    assert [b"body", b"body"] == [each.body for each in requests]


async def test_headers_of_answers(tap: Tap) -> None:
    """Connection headers of the backend are dropped. Others reach the agent, whether the answer is forwarded or assembled."""
    id = await tap.open()
    headers = "X-Request-Id: abc\r\nConnection: X-Mine\r\nX-Mine: 1\r\nKeep-Alive: timeout=5\r\nContent-Type: text/plain\r\n"
    streamed = said().replace(b"content-type", b"x-request-id: abc\r\nconnection: keep-alive\r\ncontent-type")
    async with backend(answering(response(b"text", headers=headers), streamed)) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        plain = await caller.ask(request(id, "/models", method="GET"))
        put_together = await caller.ask(request(id))

    assert ("HTTP/1.1 200 OK", b"text") == (plain.first, plain.body)
    assert {"x-request-id": "abc", "content-type": "text/plain", "content-length": "4"} == plain.headers
    assert {
        "x-request-id": "abc",
        "content-type": "application/json",
        "content-length": str(len(put_together.body)),
    } == put_together.headers


@pytest.mark.parametrize(
    ("method", "answer", "first", "body"),
    [
        ("GET", response(MODELS), "HTTP/1.1 200 OK", MODELS),
        ("GET", response(b""), "HTTP/1.1 200 OK", b""),
        ("GET", STREAM_HEAD + LAST_CHUNK, "HTTP/1.1 200 OK", b""),
        ("GET", STREAM_HEAD + chunk(b"ab") + chunk(b"c") + b"0\r\nx-trailer: 1\r\n\r\n", "HTTP/1.1 200 OK", b"abc"),
        ("GET", b"HTTP/1.1 100 Continue\r\nx-early: 1\r\n\r\nHTTP/1.1 103 Early\r\n\r\n" + response(b"x"), "HTTP/1.1 200 OK", b"x"),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 204 No Content", b""),
        ("GET", b"HTTP/1.1 304 Not Modified\r\netag: x\r\n\r\n", "HTTP/1.1 304 Not Modified", b""),
        ("GET", b"HTTP/1.1 299 Odd\r\ncontent-length: 1\r\n\r\nx", "HTTP/1.1 299 ", b"x"),
        ("GET", response(b"down", 503), "HTTP/1.1 503 Service Unavailable", b"down"),
        ("POST", response(MODELS), "HTTP/1.1 200 OK", MODELS),
        ("POST", response(b""), "HTTP/1.1 200 OK", b""),
    ],
)
async def test_requests_that_are_not_calls(tap: Tap, method: str, answer: bytes, first: str, body: bytes) -> None:
    """Answers to other requests are forwarded, with or without a body, twice on the same connections. They are not recorded."""
    id = await tap.open()
    connections = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await answering(answer)(reader, writer)

    async with backend(handle) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        got = [await caller.ask(request(id, "/embeddings" if method == "POST" else "/models", b"{}", method)) for _ in range(2)]

    assert [(first, body)] * 2 == [(each.first, each.body) for each in got]
    for each in got:
        assert (b"chunked" in answer, True) == ("transfer-encoding" in each.headers, {"x-trailer", "x-early"}.isdisjoint(each.headers))
    assert [] == await tap.close(id)
    assert 1 == connections


async def test_head(tap: Tap) -> None:
    """The answer to HEAD has a length but no body, and the connection stays open."""
    id = await tap.open()
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n"
    async with backend(answering(head, response(b"x"))) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        await caller.send(request(id, "/models", method="HEAD"))
        first = await caller.reader.readuntil(b"\r\n\r\n")
        second = await caller.ask(request(id, "/models", method="GET"))

    assert head == first
    assert b"x" == second.body


async def test_an_answer_that_ends_with_its_connection(tap: Tap) -> None:
    """An HTTP/1.0 server, or one that sends no length, ends its answer by closing. The agent's connection stays open."""
    id = await tap.open()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(b"HTTP/1.0 200 OK\r\ncontent-type: text/plain\r\n\r\nsome text")

    async with backend(handle) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        got = [await caller.ask(request(id, "/models", method="GET")) for _ in range(2)]

    assert [b"some text"] * 2 == [each.body for each in got]


RESPONSE = {"id": "r", "object": "response", "status": "completed", "output": [{"type": "function_call", "name": "f", "arguments": "{}"}]}
MESSAGE = {
    "id": "m",
    "content": [{"type": "text", "text": "Hi"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 3, "output_tokens": 1},
}
OTHER_DIALECTS: dict[str, tuple[str, list[Json], Json]] = {
    "responses": (
        "/responses",
        [{"type": "response.output_text.delta", "delta": "Hi"}, {"type": "response.completed", "response": RESPONSE}],
        RESPONSE,
    ),
    "messages": (
        "/messages",
        [
            {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
            {"type": "message_stop"},
        ],
        {"type": "message", "role": "assistant", **MESSAGE},
    ),
}


@pytest.mark.parametrize("name", OTHER_DIALECTS)
async def test_other_dialects(tap: Tap, name: str) -> None:
    """Calls of other APIs are streamed from the backend, whether the agent streams or not."""
    id = await tap.open()
    requests: list[Message] = []
    route, said, answer = OTHER_DIALECTS[name]
    events = [b"event: %b\ndata: %b\n\n" % (each["type"].encode(), json.dumps(each).encode()) for each in said]
    sse = STREAM_HEAD + b"".join(map(chunk, events)) + LAST_CHUNK
    async with backend(answering(sse, requests=requests)) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        streamed = await caller.ask(request(id, route, b'{"model": "m", "stream": true}'))
        whole = await caller.ask(request(id, route, b'{"model": "m"}'))
    calls = await tap.close(id)

    assert [True, True] == [request.json["stream"] for request in requests]
    assert (b"".join(events), answer) == (streamed.body, whole.json)
    assert [(name, True, False, "m"), (name, False, True, "m")] == [
        (call.dialect, call.streamed, call.upgraded, call.model) for call in calls
    ]
    assert [(None, ["content"])] * 2 == [
        (call.error_kind, [chunk.kind for chunk in call.chunks if chunk.kind in OUTPUT_KINDS]) for call in calls
    ]


async def test_calls_that_are_not_streamed(tap: Tap) -> None:
    """Calls that a backend cannot stream are forwarded without streaming, and their answers are read."""
    id = await tap.open()
    requests: list[Message] = []
    body = b'{"model": "m", "input": "Hello", "background": true}'
    queued = b'{"object": "response", "status": "queued", "background": true, "output": []}'
    async with backend(answering(response(queued), requests=requests)) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        whole = await caller.ask(request(id, "/responses", body))
    (call,) = await tap.close(id)

    assert (body, queued) == (requests[0].body, whole.body)
    assert ("responses", False, None, "queued") == (call.dialect, call.upgraded, call.error_kind, call.finish_reason)


async def test_the_older_completions(tap: Tap) -> None:
    """A stream of the Completions API is forwarded and read."""
    id = await tap.open()
    body = b'{"model": "m", "prompt": "Hello", "stream": true}'
    events = [
        b'data: {"choices": [{"index": 0, "text": "Hi", "finish_reason": null}]}\n\n',
        b'data: {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}\n\n',
    ]
    async with backend(answering(STREAM_HEAD + b"".join(map(chunk, events)) + LAST_CHUNK)) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        answer = await caller.ask(request(id, "/completions", body))
    (call,) = await tap.close(id)

    assert b"".join(events) == answer.body
    assert (["content", "finish"], "stop", 1, "chunks") == (
        [each.kind for each in call.chunks],
        call.finish_reason,
        call.completion_tokens,
        call.token_source,
    )


async def test_a_pooled_client(tap: Tap, session: aiohttp.ClientSession) -> None:
    """A client that reuses connections never gets one that the tap has closed, whatever the earlier answers were."""
    id, closed = await tap.open(), await tap.open()
    await tap.close(closed)
    cut = STREAM_HEAD + chunk(b"data: {}\n\n") + b"zz"
    statuses = []
    async with backend(answering(said(), response(b"x", 500), cut, response(b""), said())) as url:
        await tap.point_at(url)
        for each in (id, "nobody", id, closed, id, id, id):
            async with session.post(f"{tap.url(each)}/chat/completions", json=CHAT) as answer:
                statuses.append(answer.status)
                await answer.read()

    assert [200, 404, 500, 410, 502, 502, 200] == statuses
    assert 1 == len(session.connector._conns)  # type: ignore[union-attr]
