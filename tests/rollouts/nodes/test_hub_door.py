"""The socket for node workers lets in node workers with its own token, and bounds what they send."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pytest_agentbench.lib import wire
from pytest_agentbench.lib.authentication import HELLO
from pytest_agentbench.lib.wire import Hello
from pytest_agentbench.rollouts.nodes import hub as hub_module
from pytest_agentbench.rollouts.nodes.connection import versions
from pytest_agentbench.rollouts.nodes.hub import Hub
from pytest_agentbench.rollouts.nodes.protocol import ROLE, TO_NODE, Join, NotAdmitted, Welcome
from pytest_agentbench.rollouts.pool.controller_link import ControllerLink
from pytest_agentbench.rollouts.pool.model_addresses import Addresses
from pytest_agentbench.rollouts.protocol import NodeTerms, PoolSettings
from pytest_agentbench.runs.attempts import RolloutTally
from pytest_agentbench.suites.suite import PoolSuite
from pytest_agentbench.tap.protocol import Budgets
from tests.certificates import make, needs_openssl
from tests.lib.test_authentication_door import closed
from tests.rollouts.nodes.test_suite_files import AGENT, a_suite, settings_of

TOKEN = "of nodes"


class Host:
    """Stands in for the pool."""

    waits = True

    def __init__(self) -> None:
        self.stopped = ""

    def resize(self, slots: int) -> None:
        pass

    def stop(self, reason: str) -> None:
        self.stopped = reason

    def apply_holds(self) -> None:
        """Nothing is held here."""

    def give_up(self, group: str, reason: str) -> None:
        raise AssertionError(f"{group} was given up: {reason}")


class Served:
    """A running hub, and connections to it."""

    def __init__(self, port: int, host: Host) -> None:
        self.port, self.host = port, host

    async def answer(self, *frames: bytes) -> list[wire.Packet]:
        """Sends frames, and returns the frames that come back until the connection is closed."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        packets = []
        try:
            writer.write(b"".join(frames))
            while True:
                packets.append(await asyncio.wait_for(wire.read(reader), 20))
        except (EOFError, ConnectionError):
            return packets
        finally:
            writer.close()


@asynccontextmanager
async def served(settings: PoolSettings, certificate: tuple[Path, Path] | None = None) -> AsyncIterator[Served]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    port = listener.getsockname()[1]
    terms = NodeTerms(TOKEN, listener.detach(), certificate, 60, Budgets(), 1, None)
    link, host = ControllerLink(), Host()
    addresses = Addresses("r", 1, "secret", link.tell, lambda: "", RolloutTally())
    hub = Hub(terms, settings, link, addresses, host, 1)
    await hub.serve()
    try:
        yield Served(port, host)
    finally:
        hub.abort()
        await asyncio.gather(*hub._tasks, return_exceptions=True)


def join(package: str = "", node: str = "n1") -> bytes:
    own = versions()
    return wire.pack(Join(node, "i", 1, 2, 2, 0, package or own[0], own[1]))


def suite_in(tmp_path: Path) -> PoolSuite:
    return a_suite(tmp_path / "shop", {"agent.py": AGENT})


async def test_only_node_workers(tmp_path: Path) -> None:
    """A process of the session, a client with the session's token, and another role get no answer. A node worker gets the files."""
    async with served(settings_of(suite_in(tmp_path))) as there:
        hellos = [Hello("of the session", ROLE), Hello(TOKEN, "controller"), Hello(TOKEN, "test")]
        refused = [await there.answer(wire.pack(hello), join()) for hello in hellos]
        ((header, body), *_) = await there.answer(wire.pack(Hello(TOKEN, ROLE)), join(), b"\xff" * 8)

    assert [[]] * 3 == refused
    assert isinstance(TO_NODE.read(header), Welcome)
    assert len(body) > 100


async def test_a_wrong_join(tmp_path: Path) -> None:
    """An oversized `Join`, another message in its place, and one that is no message are not answered; another version is refused."""
    hello = wire.pack(Hello(TOKEN, ROLE))
    async with served(settings_of(suite_in(tmp_path))) as there:
        wrong = [join(node="x" * HELLO), wire.framed(["Joined", {}]), wire.framed(["Join", {}]), struct.pack("!II", 0, HELLO + 1)]
        answers = [await there.answer(hello, frame) for frame in wrong]
        ((header, _),) = await there.answer(hello, join(package="other"))

    assert [[]] * 4 == answers
    assert isinstance(TO_NODE.read(header), NotAdmitted)


async def test_a_node_worker_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client with the token that does not send `Join` is closed when its time is over."""
    monkeypatch.setattr(hub_module, "PATIENCE", 0.1)
    async with served(settings_of(suite_in(tmp_path))) as there:
        assert [] == await there.answer(wire.pack(Hello(TOKEN, ROLE)))


@needs_openssl
async def test_tls(tmp_path: Path) -> None:
    """With a certificate, a node worker without TLS is not let in, and a handshake that does not begin is bounded like a silent client."""
    make(tmp_path)
    async with served(settings_of(suite_in(tmp_path)), (tmp_path / "server.pem", tmp_path / "server.key")) as there:
        assert [] == await there.answer(wire.pack(Hello(TOKEN, ROLE)), join())
        strangers = [socket.create_connection(("127.0.0.1", there.port)) for _ in range(300)]
        for each in strangers:
            each.setblocking(False)
        await closed(strangers, 300 - 256)
        for each in strangers:
            each.close()


async def test_files_that_cannot_be_sent_any_more(tmp_path: Path) -> None:
    """If the files of a suite cannot be sent when a node worker joins, the session starts no more rollouts, and says why."""
    suite = suite_in(tmp_path)
    async with served(settings_of(suite)) as there:
        (suite.folder / "link").symlink_to("/etc/passwd")
        [(answer, _)] = await there.answer(wire.pack(Hello(TOKEN, ROLE)), join())

    assert "shop/link: is a link that leads to /etc/passwd, which is not sent to node workers" in there.host.stopped
    assert ["NotAdmitted", {"reason": there.host.stopped, "again": False}] == answer
