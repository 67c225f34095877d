"""Truncated, broken and missing answers: none of them counts as a success, and each fault is recorded."""

from __future__ import annotations

import asyncio
import socket

import pytest

from pytest_agentbench.lib.connection_security import of_key
from tests.tap.peers import (
    DONE,
    LAST_CHUNK,
    OPENING,
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
    stream,
    text_of,
)

SIZED_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9999\r\n\r\n"

CUTS = {  # the data before the end of the connection, and its part that belongs to the answer
    "in a chunk": (STREAM_HEAD + b"ffff\r\n" + OPENING, OPENING),
    "behind a chunk": (STREAM_HEAD + chunk(OPENING), OPENING),
    "before [DONE]": (STREAM_HEAD + chunk(OPENING + event({}, "stop")), OPENING + event({}, "stop")),
    "before a finish_reason": (STREAM_HEAD + chunk(OPENING + DONE), OPENING + DONE),
    "in a length": (SIZED_HEAD + OPENING, OPENING),
    "no more HTTP": (STREAM_HEAD + chunk(OPENING) + b"nonsense\r\n", OPENING),
}


@pytest.mark.parametrize(("data", "said"), CUTS.values(), ids=CUTS)
async def test_a_cut_stream(tap: Tap, data: bytes, said: bytes) -> None:
    """For a truncated stream, an agent that waits for a complete answer gets a 502, one that streams gets what arrived.

    The chunks are recorded.
    """
    id = await tap.open()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(data)

    async with backend(handle) as url, agent(tap.port) as whole, agent(tap.port) as streaming:
        await tap.point_at(url)
        answer = await whole.ask(request(id))
        again = await whole.ask(request(id))
        await streaming.send(request(id, body=STREAMED))
        head = await streaming.reader.readuntil(b"\r\n\r\n")
        rest = await streaming.rest()
    calls = await tap.close(id)

    assert ((502, "cut"), 502) == ((answer.status, answer.json["error"]["code"]), again.status)
    assert b"HTTP/1.1 200 OK" == head.split(b"\r\n")[0]
    assert rest in (said, chunk(said))
    assert ["cut"] * 3 == [call.error_kind for call in calls]
    assert [["role", "content"]] * 3 == [[chunk.kind for chunk in call.chunks][:2] for call in calls]


@pytest.mark.parametrize(
    "data", [b"", b"HTTP/1.1 200 OK\r\ncontent-", b"nonsense\r\n\r\n", b"HTTP/1.1 101 X\r\nupgrade: a\r\nconnection: upgrade\r\n\r\n"]
)
async def test_no_head(tap: Tap, data: bytes) -> None:
    """Without the head of an answer, every agent gets a 502, even one that streams."""
    id = await tap.open()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(data)

    async with backend(handle) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        got = [await caller.ask(request(id, body=body)) for body in (None, STREAMED)]

    assert [(502, "cut")] * 2 == [(each.status, each.json["error"]["code"]) for each in got]
    assert [("cut", None)] * 2 == [(call.error_kind, call.http_status) for call in await tap.close(id)]


@pytest.mark.parametrize("head", [STREAM_HEAD, b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"])
async def test_a_backend_that_closes_at_done(tap: Tap, head: bytes) -> None:
    """A backend that closes after [DONE] has sent everything. The call is a success, streaming or not."""
    id = await tap.open()
    events = OPENING + event({}, "stop") + DONE

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(head + (chunk(events) if head == STREAM_HEAD else events))

    async with backend(handle) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        whole = await caller.ask(request(id))
        streamed = await caller.ask(request(id, body=STREAMED))

    assert (200, "Hi") == (whole.status, text_of(whole))
    assert (200, events) == (streamed.status, streamed.body)
    assert [None, None] == [call.error_kind for call in await tap.close(id)]


FAULTS = {
    "bad_json": ([OPENING, b"data: {\n\n"], "an event is not a chunk of an answer"),
    "error_event": ([OPENING, b'data: {"error": {"message": "too hot"}}\n\n', DONE], "too hot"),
    "empty": ([], "the stream ended without a single event"),
    "incomplete": ([OPENING, DONE], "the stream ended without a finish_reason"),
}


@pytest.mark.parametrize("kind", FAULTS)
async def test_a_faulty_stream(tap: Tap, kind: str) -> None:
    """An agent that waits for a complete answer gets a 502 with the fault, one that streams gets what arrived.

    Both records have the fault.
    """
    id = await tap.open()
    parts, sentence = FAULTS[kind]
    async with backend(answering(stream(*parts))) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        whole = await caller.ask(request(id))
        streamed = await caller.ask(request(id, body=STREAMED))
    calls = await tap.close(id)

    error = whole.json["error"]
    assert (502, "agentbench_tap", kind) == (whole.status, error["type"], error["code"])
    assert "the status 502 comes from agentbench's tap, not from the backend" == error["note"]
    assert error["message"].startswith("HTTP 200: ")
    assert sentence in error["message"]
    assert (200, "text/event-stream", b"".join(parts)) == (streamed.status, streamed.headers["content-type"], streamed.body)
    assert [(kind, error["message"], 200)] * 2 == [(call.error_kind, call.error, call.http_status) for call in calls]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (response(b""), "empty"),
        (response(b"", headers=""), "empty"),
        (response(b"", headers="content-type: text/event-stream\r\n"), "empty"),
        (response(b": nothing\n\n", headers="content-type: text/event-stream\r\n"), "empty"),
        (response(b"<html>", headers="content-type: text/html\r\n"), "bad_json"),
        (response(b'{"choices": [{"finish'), "bad_json"),
        (response(b"[1]"), "bad_json"),
        (response(b"{}"), "empty"),
        (response(b'{"choices": []}'), "no_choices"),
        (stream(event(), DONE), "no_choices"),
        (stream(event({"role": "assistant", "content": ""}), event({}, "tool_calls"), DONE), "empty"),
        (response(b'{"error": {"message": "too hot"}}'), "error_event"),
        (response(b'{"choices": {"0": 1}}'), "bad_json"),
        (stream(b'data: {"choices": [[]]}\n\n'), "bad_json"),
        (stream(b'data: {"choices": [{"delta": {"tool_calls": [5]}}]}\n\n'), "bad_tool_call"),
    ],
)
async def test_a_200_without_an_answer(tap: Tap, answer: bytes, kind: str) -> None:
    """A 200 without an answer of the API never counts as a success."""
    id = await tap.open()
    async with backend(answering(answer)) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        whole = await caller.ask(request(id))
        streamed = await caller.ask(request(id, body=STREAMED))

    assert (502, kind) == (whole.status, whole.json["error"]["code"])
    assert 200 == streamed.status
    assert [kind, kind] == [call.error_kind for call in await tap.close(id)]


async def test_a_whole_answer_to_a_call_that_was_to_stream(tap: Tap) -> None:
    """If a backend does not stream although requested, its answer is forwarded, and its usage counts. It has no timestamps."""
    id = await tap.open()
    choices = b'"choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}]'
    body = b'{%b, "usage": {"prompt_tokens": 3, "completion_tokens": 2}, "x": 1.0}' % choices
    async with (
        backend(answering(response(body, headers="content-type: application/json\r\nx-own: 1\r\n"))) as url,
        agent(tap.port) as caller,
    ):
        await tap.point_at(url)
        whole = await caller.ask(request(id))
        streamed = await caller.ask(request(id, body=STREAMED))
    calls = await tap.close(id)

    assert [(200, body, "1")] * 2 == [(each.status, each.body, each.headers["x-own"]) for each in (whole, streamed)]
    assert [((), "stop", 3, 2, "usage", None)] * 2 == [
        (call.chunks, call.finish_reason, call.prompt_tokens, call.completion_tokens, call.token_source, call.error_kind) for call in calls
    ]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((status, "http_status") for status in (400, 401, 404, 422)),
        (429, "rate_limited"),
        *((status, "server_error") for status in (500, 502)),
        *((status, "overloaded") for status in (503, 529)),
    ],
)
async def test_other_statuses(tap: Tap, status: int, kind: str) -> None:
    """Other statuses are forwarded with body and Retry-After for all calls.

    The record has the message, with advice if a key was rejected.
    """
    id = await tap.open()
    body = b'{"error": {"message": "not now", "code": "busy"}}'
    requests: list[Message] = []
    answer = response(body, status, "content-type: application/json\r\nRetry-After: 7\r\n")
    async with backend(answering(answer, requests=requests)) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        got = [await caller.ask(request(id, body=body)) for body in (None, STREAMED)]
    calls = await tap.close(id)

    assert [(status, body, "7")] * 2 == [(each.status, each.body, each.headers["retry-after"]) for each in got]
    advice = f"; {of_key(None, sent=False)}" if status == 401 else ""
    assert [(kind, f"HTTP {status}: not now{advice}", status, 7, ())] * 2 == [
        (call.error_kind, call.error, call.http_status, call.retry_after_s, call.chunks) for call in calls
    ]
    assert 2 == len(requests)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("1.5", 1.5),
        ("-1", None),
        ("soon", None),
        ("", None),
        ("Fri, 21 Nov 1997 09:55:06 GMT", 0),
        ("Tue, 21 Nov 2995 09:55:06 GMT", 3e9),
        ("Tue, 21 Nov 99999999999 09:55:06 GMT", None),
    ],
)
async def test_retry_after(tap: Tap, value: str, seconds: float | None) -> None:
    """Retry-After may be seconds or a date. A date in the past is 0, and anything else is ignored."""
    id = await tap.open()
    async with backend(answering(response(b"{}", 503, f"retry-after: {value}\r\n"))) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        await caller.ask(request(id))
    (call,) = await tap.close(id)

    assert call.retry_after_s == seconds if seconds is None or seconds < 1e9 else (call.retry_after_s or 0) > seconds


@pytest.mark.parametrize("body", [None, STREAMED])
async def test_a_redirect(tap: Tap, body: bytes | None) -> None:
    """Redirects are neither followed nor forwarded, because the agent's next call would not be measured."""
    id = await tap.open()
    moved = response(b"over there", 307, "location: http://elsewhere/v1\r\n")
    async with backend(answering(moved)) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        answer = await caller.ask(request(id, body=body))
    (call,) = await tap.close(id)

    assert (502, "redirect") == (answer.status, answer.json["error"]["code"])
    assert ("redirect", 307) == (call.error_kind, call.http_status)
    assert "http://elsewhere/v1" in call.error


async def test_a_status_with_a_stream_of_its_own(tap: Tap) -> None:
    """An error status remains an error if its body is a stream, or is truncated."""
    id = await tap.open()
    failing = b"HTTP/1.1 500 X\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n" + chunk(b"data: no\n\n")

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(failing)

    async with backend(answering(failing + LAST_CHUNK)) as url, backend(handle) as cutting, agent(tap.port) as caller:
        await tap.point_at(url)
        whole = await caller.ask(request(id))
        await tap.point_at(cutting)
        cut = await caller.ask(request(id))

    assert (500, b"data: no\n\n") == (whole.status, whole.body)
    assert (502, "cut") == (cut.status, cut.json["error"]["code"])
    assert [("server_error", 500), ("cut", 500)] == [(call.error_kind, call.http_status) for call in await tap.close(id)]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_backend_that_does_not_listen(tap: Tap, streamed: bool) -> None:
    """A backend that cannot be reached leads to a 502 with that message."""
    id = await tap.open()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    await tap.point_at(f"http://127.0.0.1:{port}/v1")
    async with agent(tap.port) as caller:
        answer = await caller.ask(request(id, body=STREAMED if streamed else None))
    (call,) = await tap.close(id)

    assert (502, "agentbench_tap", "connect") == (answer.status, answer.json["error"]["type"], answer.json["error"]["code"])
    assert f"no connection to 127.0.0.1:{port}: " in answer.json["error"]["message"] == call.error
    assert ("connect", None, None, ()) == (call.error_kind, call.sent_ns, call.http_status, call.chunks)


@pytest.mark.parametrize("host", ["nowhere.invalid", "a" * 70 + ".invalid"])
async def test_an_unknown_host(tap: Tap, host: str) -> None:
    """A host name that cannot be resolved is a failed connection."""
    id = await tap.open()
    await tap.point_at(f"http://{host}/v1")
    async with agent(tap.port) as caller:
        answer = await caller.ask(request(id))

    assert (502, "connect") == (answer.status, answer.json["error"]["code"])
