"""The control port: the pool's messages, and clients that are not the pool."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pytest_agentbench.errors import InfraError
from pytest_agentbench.lib import codec, wire
from pytest_agentbench.lib.process import Child
from pytest_agentbench.lib.wire import PROTOCOL, Hello, OtherVersion, Refused
from pytest_agentbench.tap.client import TapControl
from pytest_agentbench.tap.protocol import (
    FROM_TAP,
    AddressCalls,
    CloseAddress,
    GetTapStats,
    KeptReplies,
    OpenAddress,
    PointAt,
    TakeReplies,
    TapDone,
    TapListening,
    TapRefusal,
    TapStats,
    UpstreamFacts,
)
from pytest_agentbench.tap.routing_hints import NO_LABEL
from tests.tap.conftest import TOKEN, StartTap
from tests.tap.peers import Agent, Tap, agent, answering, backend, read_message, request, response, said

HELLO = wire.pack(Hello(TOKEN, "pool"))


@pytest.fixture
async def line(tap: Tap, shared_tap: tuple[Child, TapListening]) -> AsyncIterator[Agent]:
    """A connection to the control port without a Hello."""
    async with agent(shared_tap[1].control_port) as line:
        yield line


@pytest.mark.parametrize(
    "hello",
    [
        wire.pack(Hello("wrong", "pool")),
        wire.framed(["Hello", {"token": None, "role": "pool", "protocol": PROTOCOL}]),
        wire.framed(["Hello", {"token": [TOKEN], "role": "pool", "protocol": PROTOCOL}]),
        wire.framed({"token": TOKEN, "role": "pool"}),
        wire.framed({}),
        struct.pack("!II", 2, 0) + b"[]",
        struct.pack("!II", 5, 0) + b"{\xff\xfe}",
        struct.pack("!II", 1, 0) + b"{",
        struct.pack("!II", 0, 0),
        struct.pack("!II", 200_000, 0) + b"[" * 200_000,
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 64,
    ],
)
async def test_clients_without_the_token(line: Agent, hello: bytes) -> None:
    """A client without the token is disconnected without an answer."""
    await line.send(hello + wire.pack(GetTapStats()))

    assert b"" == await line.rest()


@pytest.mark.parametrize(
    "upstream",
    [
        UpstreamFacts("localhost:8000"),
        UpstreamFacts("http://"),
        UpstreamFacts("http://[::1"),
        UpstreamFacts("http://host:99999"),
        UpstreamFacts("ftp://host"),
        UpstreamFacts("http://häst"),
        UpstreamFacts("http://host/a b"),
        UpstreamFacts("http://host", api_key="schlüssel"),
        UpstreamFacts("http://host", api_key="two\r\nlines"),
        UpstreamFacts("https://host", ca_file="/nowhere/ca.pem"),
        UpstreamFacts("https://host", ca_file="/dev/null"),
    ],
)
async def test_invalid_backends(tap: Tap, upstream: UpstreamFacts) -> None:
    """Invalid backends are refused with a sentence. The connection stays open, and calls go to the same backend as before."""
    id = await tap.open()
    async with backend(answering(said())) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        with pytest.raises(InfraError, match=f"^the tap refused the message PointAt: calls cannot be sent to {re.escape(upstream.url)}: "):
            await tap.control.ask(PointAt(upstream), TapDone)

        assert 200 == (await caller.ask(request(id))).status


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ([], r"\[\] is not a message"),
        ({"op": "stats"}, "{'op': 'stats'} is not a message"),
        (["Dance", {}], "the message 'Dance' is unknown; known are: PointAt, OpenAddress, TakeReplies, CloseAddress, GetTapStats, "),
        (["CloseAddress", {}], "id is missing"),
        (["CloseAddress", {"id": ["x"]}], "id is a list, not a text"),
        (["PointAt", {"upstream": {**codec.plain(UpstreamFacts("http://host")), "api_key": 5}}], "upstream.api_key is a whole number"),
        (
            ["OpenAddress", {**codec.plain(OpenAddress("x")), "label": {**codec.plain(NO_LABEL), "headers": 5}}],
            "label.headers is a whole number",
        ),
        (["OpenAddress", {**codec.plain(OpenAddress("x")), "colour": 5}], "colour is unknown"),
    ],
)
async def test_questions_that_cannot_be_read(line: Agent, header: Any, reason: str) -> None:
    """Unreadable messages are refused with a sentence, whatever their body, and the next message is answered."""
    await line.send(HELLO + wire.framed(header, b"abc") + wire.pack(GetTapStats()))
    refusal, answer = [FROM_TAP.read((await wire.read(line.reader))[0]) for _ in range(2)]

    assert isinstance(refusal, TapRefusal)
    assert re.match(reason, refusal.reason)
    assert isinstance(answer, TapStats)


@pytest.mark.parametrize("frame", [struct.pack("!II", 1, 0) + b"{", struct.pack("!II", 1 << 31, 0), struct.pack("!II", 9, 9) + b"{"])
async def test_invalid_frames(line: Agent, frame: bytes) -> None:
    """Invalid frames end their own connection and nothing else."""
    await line.send(HELLO + frame)
    line.writer.write_eof()

    assert b"" == await line.rest()


async def test_ids_are_used_once(tap: Tap) -> None:
    """An id that is or was open cannot be opened again, so that no call is lost or counted for another rollout."""
    id = await tap.open()
    with pytest.raises(InfraError, match="an address with this id was opened before"):
        await tap.control.ask(OpenAddress(id), TapDone)
    await tap.close(id)
    with pytest.raises(InfraError, match="an address with this id was opened before"):
        await tap.control.ask(OpenAddress(id), TapDone)
    with pytest.raises(InfraError, match="no address with this id is open"):
        await tap.close(id)
    with pytest.raises(InfraError, match="no address with this id is open"):
        await tap.control.ask(TakeReplies(id), KeptReplies)


async def test_stats(tap: Tap) -> None:
    """The stats count open addresses and calls in flight."""
    before = await tap.control.ask(GetTapStats(), TapStats)
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
        during = await tap.control.ask(GetTapStats(), TapStats)
        go.set()
        await caller.answer()
        after = await tap.control.ask(GetTapStats(), TapStats)

    assert [(0, 0), (1, 1), (0, 1)] == [(each.in_flight, each.open - before.open) for each in (before, during, after)]


async def test_a_cancelled_question(tap: Tap) -> None:
    """The answer to a cancelled question is not taken for the answer to the next one."""
    ids = [await tap.open() for _ in range(3)]
    for place in range(50):
        asking = asyncio.create_task(tap.control.ask(GetTapStats(), TapStats))
        for _ in range(place % 4):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    assert [AddressCalls(())] * 3 == await asyncio.gather(*(tap.control.ask(CloseAddress(id), AddressCalls) for id in ids))


async def test_a_tap_that_has_died(start_tap: StartTap) -> None:
    """When a tap dies, pending and later questions raise InfraError."""
    child = start_tap(token=TOKEN)
    control = await TapControl.connect(child.ready(TapListening).control_port, TOKEN)
    await control.ask(GetTapStats(), TapStats)
    os.kill(child.process.pid, signal.SIGSTOP)
    waiting = [asyncio.create_task(control.ask(GetTapStats(), TapStats)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    child.process.kill()

    with pytest.raises(InfraError, match="the connection to the tap was lost"):
        await waiting[1]
    with pytest.raises(InfraError, match="the connection to the tap was lost"):
        await waiting[2]
    with pytest.raises(InfraError, match="the connection to the tap was lost"):
        await control.ask(GetTapStats(), TapStats)
    control.close()


async def test_a_wrong_token(shared_tap: tuple[Child, TapListening]) -> None:
    """With a wrong token, questions raise InfraError."""
    control = await TapControl.connect(shared_tap[1].control_port, "wrong")

    with pytest.raises(InfraError, match="the connection to the tap was lost"):
        await control.ask(GetTapStats(), TapStats)
    control.close()


async def test_another_version(line: Agent) -> None:
    """A client with another protocol version gets a sentence with both versions, and the connection ends."""
    await line.send(wire.pack(Hello(TOKEN, "pool", PROTOCOL + 1)) + wire.pack(GetTapStats()))
    with pytest.raises(OtherVersion, match=f"speaks protocol {PROTOCOL + 1}, and this one protocol {PROTOCOL}: both need the same version"):
        FROM_TAP.read((await wire.read(line.reader))[0])

    assert b"" == await line.rest()


async def test_a_tap_of_another_version() -> None:
    """The pool raises the sentence of a tap with another version, before and after it has arrived."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await wire.read(reader)
        writer.write(wire.pack(Refused("they are of two versions")))

    async with backend(refuse) as url:
        control = await TapControl.connect(int(url.rpartition(":")[2]), TOKEN)
        for _ in range(2):
            with pytest.raises(InfraError, match=r"^they are of two versions$"):
                await control.ask(GetTapStats(), TapStats)
        control.close()


async def test_an_answer_that_cannot_be_read() -> None:
    """An unreadable answer makes only its own question fail. The next one gets its answer."""
    answers = [wire.framed(["AddressCalls", {"calls": 5}]), wire.pack(TapStats(0, 1, 2))]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await wire.read(reader)
        for each in answers:
            await wire.read(reader)
            writer.write(each)
        await reader.read()

    async with backend(answer) as url:
        control = await TapControl.connect(int(url.rpartition(":")[2]), TOKEN)
        with pytest.raises(InfraError, match="the pool cannot read the answer: calls is a whole number, not a list"):
            await control.ask(CloseAddress("x"), AddressCalls)
        stats = await control.ask(GetTapStats(), TapStats)
        control.close()

    assert TapStats(0, 1, 2) == stats
