"""Time limits: calls that take too long are ended with their own kind of fault."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

import pytest

from pytest_agentbench.tap.client import TapControl
from pytest_agentbench.tap.protocol import Budgets, TapListening
from tests.tap.conftest import TOKEN, StartTap
from tests.tap.peers import (
    CHAT,
    LAST_CHUNK,
    OPENING,
    STREAM_HEAD,
    STREAMED,
    Agent,
    Handler,
    Tap,
    agent,
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

ROLE = event({"role": "assistant", "content": ""})
KEEP_ALIVE = b": still here\n\n"


@asynccontextmanager
async def tap_with(start_tap: StartTap, **budgets: float) -> AsyncIterator[Tap]:
    child = start_tap(token=TOKEN, budgets=Budgets(**budgets))
    ports = child.ready(TapListening)
    tap = Tap(child, ports, await TapControl.connect(ports.control_port, TOKEN))
    yield tap
    tap.control.close()
    assert (None, "") == (child.process.poll(), child.log.read_text())


@contextmanager
def full_queue() -> Iterator[str]:
    """The address of a server that accepts no connections and whose queue is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(8):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def stalling(start: bytes, forever: bytes, left: asyncio.Event) -> Handler:
    """Returns a handler that sends `start`, and then `forever` every 50 ms until the tap disconnects."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(start)
        gone = asyncio.create_task(reader.read())
        while not gone.done():
            writer.write(forever)
            await asyncio.wait([gone], timeout=0.05)
        left.set()

    return handle


def data_of(answer: bytes) -> bytes:
    """Returns the data of the only chunk in these bytes, if there is one."""
    return answer.removeprefix(STREAM_HEAD).partition(b"\r\n")[2].removesuffix(b"\r\n")


async def cut_body(caller: Agent) -> bytes:
    """Returns the data of an answer's chunks up to the end of the connection."""
    got = b""
    try:
        async for piece in chunks(caller.reader):
            got += piece
    except (asyncio.IncompleteReadError, ConnectionError):
        return got
    pytest.fail("the answer came to its end")


@pytest.mark.parametrize("body", [None, STREAMED])
async def test_no_connection(start_tap: StartTap, body: bytes | None) -> None:
    """If the backend accepts no connection, the agent gets a 504, and nothing was sent."""
    with full_queue() as url:
        async with tap_with(start_tap, connect=0.2) as tap, agent(tap.port) as caller:
            id = await tap.open()
            await tap.point_at(url)
            answer = await caller.ask(request(id, body=body))
            (call,) = await tap.close(id)

    assert (504, "timeout_connect") == (answer.status, answer.json["error"]["code"])
    assert ("timeout_connect", None, None) == (call.error_kind, call.sent_ns, call.http_status)


STALLS: dict[str, tuple[dict[str, float], bytes, bytes, str]] = {
    "nothing": ({"first_token": 0.3}, b"", b"", "timeout_first_token"),
    "comments": ({"first_token": 0.3}, STREAM_HEAD, chunk(KEEP_ALIVE), "timeout_first_token"),
    "roles": ({"first_token": 0.3}, STREAM_HEAD, chunk(ROLE), "timeout_first_token"),
    "comments after tokens": ({"idle": 0.3}, STREAM_HEAD + chunk(OPENING), chunk(KEEP_ALIVE), "timeout_idle"),
    "a long way to the first token": ({"first_token": 600, "idle": 0.3}, STREAM_HEAD + chunk(OPENING), chunk(KEEP_ALIVE), "timeout_idle"),
    "tokens without end": (
        {"first_token": 0.3, "idle": 0.3, "call": 0.5},
        STREAM_HEAD + chunk(OPENING),
        chunk(event({"content": "x"})),
        "timeout_call",
    ),
    "a call without answer": ({"call": 0.3}, b"", b"", "timeout_call"),
}


@pytest.mark.parametrize("case", STALLS)
async def test_a_stall(start_tap: StartTap, case: str) -> None:
    """An agent that waits for a complete answer gets a 504 with the fault.

    One that streams gets a truncated stream. The backend connection is closed.
    """
    budgets, start, forever, kind = STALLS[case]
    async with tap_with(start_tap, **budgets) as tap:
        id = await tap.open()
        left, left_too = asyncio.Event(), asyncio.Event()
        async with backend(stalling(start, forever, left)) as url, agent(tap.port) as caller:
            await tap.point_at(url)
            whole = await caller.ask(request(id))
            await until(left.is_set, "the tap to leave the backend")
        async with backend(stalling(start, forever, left_too)) as url, agent(tap.port) as caller:
            await tap.point_at(url)
            await caller.send(request(id, body=STREAMED))
            if start:
                assert b"HTTP/1.1 200 OK" in await caller.reader.readuntil(b"\r\n\r\n")
                assert (await cut_body(caller)).startswith(data_of(start) + data_of(forever))
            else:
                refused = await caller.answer()
                assert (504, kind) == (refused.status, refused.json["error"]["code"])
            await until(left_too.is_set, "the tap to leave the backend")
        calls = await tap.close(id)

    assert (504, kind) == (whole.status, whole.json["error"]["code"])
    assert [kind] * 2 == [call.error_kind for call in calls]


@pytest.mark.parametrize(
    ("budgets", "start", "kind"),
    [({"first_token": 0.3}, ROLE, "timeout_first_token"), ({"idle": 0.3}, OPENING, "timeout_idle")],
    ids=["no-token", "no-further-token"],
)
async def test_an_answer_to_a_part_of_the_request(start_tap: StartTap, budgets: dict[str, float], start: bytes, kind: str) -> None:
    """The limit of the first token begins when a backend answers before it has the whole request."""
    body = json.dumps({**CHAT, "stream": True, "stream_options": {"include_usage": True}, "user": "x" * 30_000_000}).encode()

    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(STREAM_HEAD + chunk(start))
        await writer.wait_closed()

    async with tap_with(start_tap, **budgets) as tap, backend(early, limit=1 << 12) as url, agent(tap.port) as caller:
        id = await tap.open()
        await tap.point_at(url)
        await caller.send(request(id, body=body))
        await caller.reader.readuntil(b"\r\n\r\n")
        assert start == await cut_body(caller)
        (call,) = await tap.close(id)

    assert (kind, None) == (call.error_kind, call.sent_ns)


@pytest.mark.parametrize("body", [None, STREAMED])
async def test_slow_but_steady(start_tap: StartTap, body: bytes | None) -> None:
    """Limits apply to the parts of a call. A stream that is longer than each limit but never stalls is complete."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(STREAM_HEAD)
        for _ in range(12):
            await asyncio.sleep(0.15)
            writer.write(chunk(event({"content": "x"})))
        writer.write(chunk(event({}, "stop") + b"data: [DONE]\n\n") + LAST_CHUNK)

    async with tap_with(start_tap, connect=1, first_token=1, idle=1) as tap, backend(handle) as url, agent(tap.port) as caller:
        id = await tap.open()
        await tap.point_at(url)
        answer = await caller.ask(request(id, body=body))
        (call,) = await tap.close(id)

    assert (200, None, 12) == (answer.status, call.error_kind, call.completion_tokens)


async def test_calls_without_streaming(start_tap: StartTap) -> None:
    """An answer without streaming has no first token and no gaps, so only the limit of the call applies."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for seconds in (0.4, 30):
            await read_message(reader)
            await asyncio.sleep(seconds)
            writer.write(response(b'{"choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}]}'))

    async with tap_with(start_tap, first_token=0.1, idle=0.1, call=1) as tap:
        id = await tap.open(upgrade=False)
        async with backend(handle) as url, agent(tap.port) as caller:
            await tap.point_at(url)
            got = [(await caller.ask(request(id))).status for _ in range(2)]
        calls = await tap.close(id)

    assert [200, 504] == got
    assert [None, "timeout_call"] == [call.error_kind for call in calls]


async def test_budgets_of_a_kept_connection(start_tap: StartTap) -> None:
    """The limits of one call do not affect the next one on the same connections."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(4):
            await read_message(reader)
            await asyncio.sleep(0.25)
            writer.write(said())

    async with tap_with(start_tap, first_token=0.7, idle=0.7, call=0.7) as tap, backend(handle) as url, agent(tap.port) as caller:
        id = await tap.open()
        await tap.point_at(url)
        got = [(await caller.ask(request(id))).status for _ in range(4)]

    assert [200] * 4 == got
