"""Answers are acknowledged without the kernel's delay, so that a server without TCP_NODELAY does not hold back the first event."""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from pytest_agentbench.tap.agents import AgentConnection
from pytest_agentbench.tap.protocol import Budgets, OpenAddress, PointAt, UpstreamFacts
from pytest_agentbench.tap.relay import Relay
from pytest_agentbench.tap.upstream import UpstreamConnection
from tests.certificates import needs_openssl
from tests.tap.peers import DONE, LAST_CHUNK, STREAM_HEAD, STREAMED, agent, backend, chunk, event, read_message, request

if sys.platform != "linux":
    pytest.skip("NOT TESTED: acknowledgements without delay; only Linux has TCP_QUICKACK", allow_module_level=True)

OPTION = (socket.IPPROTO_TCP, socket.TCP_QUICKACK)


async def options_seen(calls: int, ca_file: str | None = None, **options: Any) -> list[int]:
    """Makes calls on one connection to a server without TCP_NODELAY. Returns the value of TCP_QUICKACK when the server has each request.

    The server writes the head and the first event separately. Before each call the option is 0, which is the state that the kernel
    chooses on a connection whose requests follow its answers within 40 ms.
    """
    relay = Relay("of-the-test", Budgets())
    seen: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
        while True:
            await read_message(reader)
            connection = cast(UpstreamConnection, relay.open["r"].exchanges[-1].agent.upstream)
            seen.append(connection._socket.getsockopt(*OPTION))
            for part in (STREAM_HEAD, chunk(event({"content": "Hello"})), chunk(event({}, "stop")) + chunk(DONE) + LAST_CHUNK):
                writer.write(part)
                await writer.drain()
            connection._socket.setsockopt(*OPTION, 0)

    server = await asyncio.get_running_loop().create_server(lambda: AgentConnection(relay), "127.0.0.1", 0)
    async with server, backend(serve, **options) as url, agent(server.sockets[0].getsockname()[1]) as caller:
        relay.answer(PointAt(UpstreamFacts(url, ca_file=ca_file)))
        relay.answer(OpenAddress("r"))
        assert [200] * calls == [(await caller.ask(request("r", body=STREAMED))).status for _ in range(calls)]
    return seen


async def test_the_option_is_set_after_each_request() -> None:
    """When the server has a request, the answer to it will be acknowledged at once, also on a connection that is used again."""
    assert [1, 1, 1] == await options_seen(3)


@needs_openssl
async def test_the_option_is_set_with_tls(certificates: Path, tls: ssl.SSLContext) -> None:
    """It is so with TLS, too, whose connections have no kernel timestamps."""
    assert [1, 1, 1] == await options_seen(3, str(certificates / "ca.pem"), ssl=tls)
