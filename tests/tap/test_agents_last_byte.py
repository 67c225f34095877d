"""After the last byte of an answer, nothing can make the call fail."""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx
import pytest

from pytest_agentbench.tap.protocol import KeptReplies, TakeReplies
from tests.tap.peers import (
    CHAT,
    DONE,
    LAST_CHUNK,
    OPENING,
    STREAM_HEAD,
    STREAMED,
    Agent,
    Handler,
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
    until,
)

AT_ONCE = 64  # calls that are answered at the same moment, so that the end of most of them is queued

USAGE = b'"usage": {"prompt_tokens": 3, "completion_tokens": 2}'
WHOLE = b'{"choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}], %b}' % USAGE
CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
EVENTS = OPENING + event({}, "stop") + event(usage={"prompt_tokens": 3, "completion_tokens": 2}) + DONE

ANSWERS = {
    "with a length": (None, response(WHOLE)),
    "in chunks": (None, CHUNKED_HEAD + chunk(WHOLE) + LAST_CHUNK),
    "until the close": (None, b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n" + WHOLE),
    "connection: close": (None, response(WHOLE, headers="content-type: application/json\r\nconnection: close\r\n")),
    "streamed": (STREAMED, stream(EVENTS)),
    "streamed with a length": (STREAMED, response(EVENTS, headers="content-type: text/event-stream\r\n")),
}


def all_at_once(answer: bytes) -> Handler:
    """Returns a handler that waits for AT_ONCE requests and then answers all of them."""
    waiting: list[asyncio.StreamWriter] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        waiting.append(writer)
        if len(waiting) == AT_ONCE:
            for each in waiting:
                each.write(answer)
                if answer.startswith(b"HTTP/1.0"):
                    each.write_eof()
        await reader.read()

    return handle


async def close_in_order(_tap: Tap, _id: str, caller: Agent) -> None:
    caller.writer.close()


async def reset(_tap: Tap, _id: str, caller: Agent) -> None:
    caller.reset()


async def end_the_rollout(tap: Tap, id: str, _caller: Agent) -> None:
    await tap.control.ask(TakeReplies(id), KeptReplies)  # This aborts calls in flight.


@pytest.mark.parametrize("leave", [close_in_order, reset, end_the_rollout])
@pytest.mark.parametrize(("body", "answer"), ANSWERS.values(), ids=ANSWERS)
async def test_leaving_with_the_last_byte(
    tap: Tap, body: bytes | None, answer: bytes, leave: Callable[[Tap, str, Agent], Awaitable[None]]
) -> None:
    """After the last byte, the agent may disconnect and the rollout may end. The call is a success and its tokens are counted."""
    ids = [await tap.open(upgrade=False) for _ in range(AT_ONCE)]

    async def call(id: str) -> None:
        async with agent(tap.port) as caller:
            await caller.ask(request(id, body=body))
            await leave(tap, id, caller)

    async with backend(all_at_once(answer)) as url:
        await tap.point_at(url)
        await asyncio.gather(*map(call, ids))
        await until(tap.is_idle, "the ends of the calls")
    calls = [call for id in ids for call in await tap.close(id)]

    assert [(None, "stop", 2)] * AT_ONCE == [(call.error_kind, call.finish_reason, call.completion_tokens) for call in calls]


def by_urllib(url: str, body: bytes) -> bytes:
    asked = urllib.request.Request(url, body, {"content-type": "application/json"})
    with urllib.request.urlopen(asked) as answer:
        text: bytes = answer.read()
    return text


def by_http_client(url: str, body: bytes) -> bytes:
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.netloc)
    connection.request("POST", place.path, body)
    text = connection.getresponse().read()
    connection.close()
    return text


def by_httpx(url: str, body: bytes) -> bytes:
    return httpx.post(url, content=body, trust_env=False, timeout=60).content


def by_curl(url: str, body: bytes) -> bytes:
    return subprocess.run(["curl", "--silent", "--data-binary", "@-", url], input=body, check=True, capture_output=True).stdout


needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


@pytest.mark.parametrize("client", [by_urllib, by_http_client, by_httpx, pytest.param(by_curl, marks=needs_curl)])
async def test_clients_that_keep_no_connection(tap: Tap, client: Callable[[str, bytes], bytes]) -> None:
    """Whatever a client does with its connection after the answer, its calls succeed."""
    id = await tap.open(upgrade=False)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        async with backend(all_at_once(response(WHOLE))) as url:
            await tap.point_at(url)
            place, body = f"{tap.url(id)}/chat/completions", json.dumps(CHAT).encode()
            loop = asyncio.get_running_loop()
            answers = await asyncio.gather(*(loop.run_in_executor(threads, client, place, body) for _ in range(AT_ONCE)))
            await until(tap.is_idle, "the ends of the calls")
    calls = await tap.close(id)

    assert [WHOLE] * AT_ONCE == answers
    assert [(None, 2)] * AT_ONCE == [(call.error_kind, call.completion_tokens) for call in calls]


LEAVING_EARLY = {
    "at the finish reason": (STREAM_HEAD + chunk(OPENING + event({}, "stop")), STREAMED, b'"stop"', (None, 200, "stop")),
    "at a refusal's head": (response(b"down" * 9, 500)[:-9], None, b"\r\n\r\n", ("server_error", 500, None)),
    "at a refusal's head, streaming": (response(b"down" * 9, 503)[:-9], STREAMED, b"\r\n\r\n", ("overloaded", 503, None)),
}


@pytest.mark.parametrize(("sent", "body", "last", "record"), LEAVING_EARLY.values(), ids=LEAVING_EARLY)
async def test_leaving_after_the_result_is_known(
    tap: Tap, sent: bytes, body: bytes | None, last: bytes, record: tuple[str | None, int, str | None]
) -> None:
    """An agent that disconnects after the result is known does not change it. The backend's result is recorded."""
    id = await tap.open(upgrade=False)
    async with backend(answering(sent)) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        await caller.send(request(id, body=body))
        await caller.reader.readuntil(last)
        caller.reset()
        await until(tap.is_idle, "the end of the call")
    (call,) = await tap.close(id)

    assert record == (call.error_kind, call.http_status, call.finish_reason)
