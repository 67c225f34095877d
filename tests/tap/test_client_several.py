"""Several taps that share a port."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from pytest_agentbench.errors import InfraError
from pytest_agentbench.lib.process import Child
from pytest_agentbench.records import Endpoint
from pytest_agentbench.tap.client import TapControl, Taps
from pytest_agentbench.tap.protocol import AddressCalls, CloseAddress, OpenAddress, TapListening
from tests.tap.conftest import TOKEN, StartTap
from tests.tap.peers import agent, answering, backend, request, said, until

pytestmark = pytest.mark.skipif(not hasattr(socket, "SO_REUSEPORT"), reason="needs SO_REUSEPORT")

CONNECTIONS = 40


class Two:
    """Two taps on one port, and the control connections to both."""

    def __init__(self, children: list[Child], taps: Taps, controls: list[TapControl], port: int) -> None:
        self.children, self.taps, self.controls, self.port = children, taps, controls, port


@pytest.fixture
async def two(start_tap: StartTap) -> AsyncIterator[Two]:
    first = start_tap(token=TOKEN)
    ports = [first.ready(TapListening)]
    second = start_tap(token=TOKEN, port=ports[0].port)
    ports.append(second.ready(TapListening))
    controls = [await TapControl.connect(each.control_port, TOKEN) for each in ports]
    assert ports[0].port == ports[1].port
    yield Two([first, second], Taps(controls), controls, ports[0].port)
    for control in controls:
        control.close()
    assert ["", ""] == [child.log.read_text() for child in (first, second)]


async def ask_one_by_one(port: int, id: str, count: int) -> list[int]:
    got = []
    for _ in range(count):
        async with agent(port) as caller:
            got.append((await caller.ask(request(id))).status)
    return got


async def test_calls_of_both_come_back_together(two: Two) -> None:
    """Connections are distributed over the taps. All calls are answered, and listed in the order of receipt."""
    async with backend(answering(said())) as url:
        await two.taps.point_at(Endpoint(url, "m"))
        await two.taps.open(OpenAddress("r1", upgrade=True))
        await two.taps.open(OpenAddress("r2"))
        got = await ask_one_by_one(two.port, "r1", CONNECTIONS)
        got += await asyncio.gather(*(ask_status(two.port, "r1") for _ in range(CONNECTIONS)))
        own = [len((await control.ask(CloseAddress("r2"), AddressCalls)).calls) for control in two.controls]
        calls, _ = await two.taps.close("r1")

    assert [200] * CONNECTIONS * 2 == got
    assert [0, 0] == own
    received = [call.received_ns for call in calls]
    assert CONNECTIONS * 2 == len(received)
    assert sorted(received) == received


async def ask_status(port: int, id: str) -> int:
    (status,) = await ask_one_by_one(port, id, 1)
    return status


async def test_each_tap_gets_its_share(two: Two) -> None:
    """Each tap gets some of 40 connections, because the kernel distributes them evenly on average."""
    async with backend(answering(said())) as url:
        await two.taps.point_at(Endpoint(url, "m"))
        await two.taps.open(OpenAddress("r", upgrade=True))
        await ask_one_by_one(two.port, "r", CONNECTIONS)
        shares = [len((await control.ask(CloseAddress("r"), AddressCalls)).calls) for control in two.controls]

    assert CONNECTIONS == sum(shares)
    assert min(shares) > 0


async def test_a_closed_token_is_closed_everywhere(two: Two) -> None:
    """All taps answer that the rollout has ended."""
    async with backend(answering(said())) as url:
        await two.taps.point_at(Endpoint(url, "m"))
        await two.taps.open(OpenAddress("r", upgrade=True))
        assert ((), []) == await two.taps.close("r")

        assert {410} == set(await ask_one_by_one(two.port, "r", CONNECTIONS))


async def test_one_of_them_dies(two: Two) -> None:
    """If one tap dies, the pool gets an error, because calls are lost and the rollout cannot be counted."""
    await two.taps.open(OpenAddress("r", upgrade=True))
    two.children[1].process.kill()
    await until(lambda: two.children[1].process.poll() is not None, "its end")

    with pytest.raises(InfraError, match="the connection to the tap was lost"):
        await two.taps.close("r")
