"""Backends that compress without being asked: the agent gets the data unchanged, and the tap decodes what it can."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

import pytest

from tests.tap.peers import DONE, OPENING, STREAM_HEAD, STREAMED, Tap, agent, answering, backend, event, request, response, stream, text_of

EVENTS = OPENING + event({}, "stop") + event(usage={"completion_tokens": 7}) + DONE
WHOLE = b'{"choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}], "usage": {"completion_tokens": 7}}'
CODINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "identity": bytes,
}


def encoded_stream(coding: str, body: bytes) -> bytes:
    pieces = [body[start : start + 10] for start in range(0, len(body), 10)]
    return stream(*pieces).replace(STREAM_HEAD, STREAM_HEAD.replace(b"\r\n\r\n", f"\r\ncontent-encoding: {coding}\r\n\r\n".encode()))


@pytest.mark.parametrize("coding", CODINGS)
async def test_streams(tap: Tap, coding: str) -> None:
    """An agent that streams gets the compressed bytes and the header. One that waits gets the decompressed answer without the header."""
    id, body = await tap.open(), CODINGS[coding](EVENTS)
    async with backend(answering(encoded_stream(coding, body))) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        streamed, whole = await caller.ask(request(id, body=STREAMED)), await caller.ask(request(id))
    calls = await tap.close(id)

    assert (coding, body) == (streamed.headers["content-encoding"], streamed.body)
    assert "Hi" == text_of(whole)
    assert "content-encoding" not in whole.headers
    assert [(None, 7, ["role", "content", "finish", "usage"])] * 2 == [
        (call.error_kind, call.completion_tokens, [each.kind for each in call.chunks]) for call in calls
    ]


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("upgrade", [True, False])
async def test_whole_answers(tap: Tap, coding: str, upgrade: bool) -> None:
    """Answers without streaming may be compressed, whether a stream was requested or not."""
    id, body = await tap.open(upgrade), CODINGS[coding](WHOLE)
    headers = f"content-type: application/json\r\ncontent-encoding: {coding}\r\n"
    async with backend(answering(response(body, headers=headers))) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        answer = await caller.ask(request(id))
    (call,) = await tap.close(id)

    assert (None, 7, "usage") == (call.error_kind, call.completion_tokens, call.token_source)
    assert (WHOLE if upgrade else body) == answer.body
    assert (None if upgrade else coding) == answer.headers.get("content-encoding")


@pytest.mark.parametrize(
    ("coding", "body"),
    [("br", EVENTS), ("gzip, gzip", EVENTS), ("gzip", EVENTS), ("deflate", b"\xff" * 20)],
    ids=["br", "twice", "gzip", "deflate"],
)
async def test_codings_that_cannot_be_read(tap: Tap, coding: str, body: bytes) -> None:
    """An unknown coding, or data that is not in the coding, is a fault. A stream is still forwarded to the agent."""
    id = await tap.open()
    async with backend(answering(encoded_stream(coding, body))) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        streamed, whole = await caller.ask(request(id, body=STREAMED)), await caller.ask(request(id))
    calls = await tap.close(id)

    assert body == streamed.body
    assert (502, "encoding") == (whole.status, whole.json["error"]["code"])
    assert ["encoding"] * 2 == [call.error_kind for call in calls]
    assert all(coding.partition(",")[0] in call.error for call in calls)


@pytest.mark.parametrize("events", [True, False], ids=["stream", "whole"])
async def test_a_coding_that_is_cut(tap: Tap, events: bool) -> None:
    """A complete body whose compressed data is truncated is a fault, even if only the checksum is missing."""
    id = await tap.open()
    body = gzip.compress(EVENTS.removesuffix(DONE) if events else WHOLE)[:-4]
    answer = encoded_stream("gzip", body) if events else response(body, headers="content-encoding: gzip\r\n")
    async with backend(answering(answer)) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        got = await caller.ask(request(id))
    (call,) = await tap.close(id)

    assert (502, "encoding") == (got.status, got.json["error"]["code"])
    assert ("encoding", "HTTP 200: the gzip body is truncated") == (call.error_kind, call.error)
