"""The control port: what the pool may ask, and what happens to those who are not the pool."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pytest_agentbench.errors import InfraError
from pytest_agentbench.lib import wire
from pytest_agentbench.lib.messages import PROTOCOL, Hello
from pytest_agentbench.lib.process import Child
from pytest_agentbench.tap.client import TapControl
from pytest_agentbench.tap.protocol import TapListening
from tests.tap.conftest import TOKEN, StartTap
from tests.tap.peers import Agent, Tap, agent, answering, backend, read_message, request, response, said

HELLO = wire.pack(Hello(TOKEN, "pool"))


@pytest.fixture
async def line(tap: Tap, shared_tap: tuple[Child, TapListening]) -> AsyncIterator[Agent]:
    """A connection to the control port that nobody has introduced yet."""
    async with agent(shared_tap[1].control_port) as line:
        yield line


@pytest.mark.parametrize(
    "hello",
    [
        wire.pack(Hello("wrong", "pool")),
        wire.pack(["Hello", {"token": None, "role": "pool", "protocol": PROTOCOL}]),
        wire.pack(["Hello", {"token": [TOKEN], "role": "pool", "protocol": PROTOCOL}]),
        wire.pack({"token": TOKEN, "role": "pool"}),
        wire.pack({}),
        struct.pack("!II", 2, 0) + b"[]",
        struct.pack("!II", 5, 0) + b"{\xff\xfe}",
        struct.pack("!II", 1, 0) + b"{",
        struct.pack("!II", 0, 0),
        struct.pack("!II", 200_000, 0) + b"[" * 200_000,
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 64,
    ],
)
async def test_strangers(line: Agent, hello: bytes) -> None:
    """Whoever does not know the token is hung up on, without a word."""
    await line.send(hello + wire.pack({"op": "stats"}))

    assert b"" == await line.rest()


@pytest.mark.parametrize(
    "question",
    [
        {},
        {"op": "dance"},
        {"op": "open"},
        {"op": "open", "id": 5},
        {"op": "close", "id": "nobody"},
        {"op": "close", "id": ["x"]},
        {"op": "upstream"},
        {"op": "upstream", "url": 5},
        {"op": "upstream", "url": "localhost:8000"},
        {"op": "upstream", "url": "http://"},
        {"op": "upstream", "url": "http://[::1"},
        {"op": "upstream", "url": "http://host:99999"},
        {"op": "upstream", "url": "ftp://host"},
        {"op": "upstream", "url": "http://häst"},
        {"op": "upstream", "url": "http://host/a b"},
        {"op": "upstream", "url": "http://host", "api_key": "schlüssel"},
        {"op": "upstream", "url": "http://host", "api_key": "two\r\nlines"},
        {"op": "upstream", "url": "http://host", "api_key": 5},
        {"op": "upstream", "url": "https://host", "ca_file": "/nowhere/ca.pem"},
        {"op": "upstream", "url": "https://host", "ca_file": "/dev/null"},
        {"op": "upstream", "url": "https://host", "ca_file": [5]},
    ],
)
async def test_questions_that_make_no_sense(tap: Tap, question: Any) -> None:
    """They are refused with a sentence, the line stays, and calls go where they went before."""
    id = await tap.open()
    async with backend(answering(said())) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        with pytest.raises(InfraError, match="the tap refused"):
            await tap.control.ask(**{"op": None, **question})

        assert 200 == (await caller.ask(request(id))).status


@pytest.mark.parametrize("frame", [struct.pack("!II", 1, 0) + b"{", struct.pack("!II", 1 << 31, 0), struct.pack("!II", 9, 9) + b"{"])
async def test_frames_that_are_none(line: Agent, frame: bytes) -> None:
    """They end their own connection and nothing else."""
    await line.send(HELLO + frame)
    line.writer.write_eof()

    assert b"" == await line.rest()


async def test_values_that_are_no_question(line: Agent) -> None:
    """Any JSON is answered."""
    await line.send(HELLO + struct.pack("!II", 2, 3) + b"[]abc")
    reply, _ = await wire.read(line.reader)

    assert {"error": "the tap does not understand []"} == reply


async def test_ids_are_used_once(tap: Tap) -> None:
    """An id that is open or was closed is not opened again, so that no call is lost or counted for another rollout."""
    id = await tap.open()
    with pytest.raises(InfraError, match="does not understand"):
        await tap.control.ask(op="open", id=id)
    await tap.close(id)
    with pytest.raises(InfraError, match="does not understand"):
        await tap.control.ask(op="open", id=id)
    with pytest.raises(InfraError, match="does not understand"):
        await tap.close(id)


async def test_stats(tap: Tap) -> None:
    """They count open rollouts and calls in flight."""
    before = await tap.control.ask(op="stats")
    id = await tap.open()
    heard, go = asyncio.Event(), asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        heard.set()
        await go.wait()
        writer.write(response(b"x"))

    async with backend(handle) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        await caller.send(request(id, "/embeddings"))
        await heard.wait()
        during = await tap.control.ask(op="stats")
        go.set()
        await caller.answer()
        after = await tap.control.ask(op="stats")

    assert [(0, 0), (1, 1), (0, 1)] == [(each["in_flight"], each["open"] - before["open"]) for each in (before, during, after)]


async def test_an_asker_that_is_cancelled(tap: Tap) -> None:
    """Its reply is not taken for that of the next question."""
    ids = [await tap.open() for _ in range(3)]
    for place in range(50):
        asking = asyncio.create_task(tap.control.ask(op="stats"))
        for _ in range(place % 4):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    assert [{"calls": []}] * 3 == await asyncio.gather(*(tap.control.ask(op="close", id=id) for id in ids))


async def test_a_tap_that_is_gone(start_tap: StartTap) -> None:
    """Whoever waits for it is told, and so is whoever asks later."""
    child = start_tap(token=TOKEN)
    control = await TapControl.connect(child.ready(TapListening).control_port, TOKEN)
    await control.ask(op="stats")
    os.kill(child.process.pid, signal.SIGSTOP)
    waiting = [asyncio.create_task(control.ask(op="stats")) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    child.process.kill()

    with pytest.raises(InfraError, match="the tap is gone"):
        await waiting[1]
    with pytest.raises(InfraError, match="the tap is gone"):
        await waiting[2]
    with pytest.raises(InfraError, match="the tap is gone"):
        await control.ask(op="stats")
    control.close()


async def test_a_wrong_token(shared_tap: tuple[Child, TapListening]) -> None:
    """The pool is told that there is no tap for it."""
    control = await TapControl.connect(shared_tap[1].control_port, "wrong")

    with pytest.raises(InfraError, match="the tap is gone"):
        await control.ask(op="stats")
    control.close()
