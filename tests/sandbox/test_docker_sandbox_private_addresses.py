"""Addresses that programs in a sandbox with the network `public` can reach, on a real Docker Engine with a bridge."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from pytest_agentbench.errors import InfraError
from pytest_agentbench.sandbox import containers
from pytest_agentbench.sandbox.containers import FILTER_IMAGE
from pytest_agentbench.sandbox.docker_sandbox import name_servers, needs_filter
from pytest_agentbench.sandbox.factory import open_sandbox
from pytest_agentbench.sandbox.sandbox import Sandbox
from tests.sandbox.bridged import ADDRESS, IMAGE
from tests.sandbox.conftest import KEY, BridgedEngine, task

PUBLIC, PRIVATE, METADATA = "203.0.113.7", "10.214.3.7", "169.254.77.77"
DNS, PORT = 53, 8377


@asynccontextmanager
async def servers(places: Iterable[tuple[str, int]]) -> AsyncIterator[None]:
    """Starts servers at these addresses and ports of the host."""
    async with AsyncExitStack() as stack:
        for address, port in places:
            server = await asyncio.start_server(lambda _reader, writer: writer.close(), address, port)
            await stack.enter_async_context(server)
        yield


async def reached(sandbox: Sandbox, places: Sequence[tuple[str, int]]) -> list[str]:
    """Returns the addresses to which a program in the sandbox can connect."""
    command = "; ".join(f"timeout 5 bash -c 'exec 3<>/dev/tcp/{address}/{port}' && echo {address}:{port}" for address, port in places)
    said = await sandbox.exec(f"({command}) 2>/dev/null", seconds=60)
    return said.output.split()


@pytest.mark.slow
async def test_private_addresses(bridged: BridgedEngine, tmp_path: Path) -> None:
    """Public addresses are reached and private ones are not, before and after processes were ended. Ranges that a suite names are open.

    On a name server with a private address, only the DNS port is reached, also if an agent configures another server.
    """
    if not shutil.which("nft"):
        pytest.skip("NOT TESTED: which addresses are closed to sandboxes; it takes nft (Debian: nftables)")
    bridged(f"{PUBLIC}/32", f"{PRIVATE}/32", f"{METADATA}/32", images={FILTER_IMAGE: ("nft",)})
    places = [(PUBLIC, PORT), (PRIVATE, PORT), (METADATA, PORT), (ADDRESS, PORT), (ADDRESS, DNS), (PRIVATE, DNS)]
    asked = task(tmp_path, image=IMAGE, network="public")
    found = {}
    async with servers(places):
        sandbox = await open_sandbox(KEY, asked, 60)
        try:
            found["at the start"] = await reached(sandbox, places)
            await sandbox.exec(f"echo nameserver {PRIVATE} > /etc/resolv.conf", seconds=10)
            await sandbox.end_processes()
            found["at the end"] = await reached(sandbox, places)
        finally:
            await sandbox.end()
        sandbox = await open_sandbox(KEY, task(tmp_path, image=IMAGE, network="public", private_addresses=("10.214.0.0/16",)), 60)
        try:
            found["opened"] = await reached(sandbox, places)
        finally:
            await sandbox.end()

    closed = [f"{PUBLIC}:{PORT}", f"{ADDRESS}:{DNS}"]
    opened = [f"{PUBLIC}:{PORT}", f"{PRIVATE}:{PORT}", f"{ADDRESS}:{DNS}", f"{PRIVATE}:{DNS}"]
    assert {"at the start": closed, "at the end": closed, "opened": opened} == found


@pytest.mark.slow
async def test_a_filter_that_cannot_be_built(bridged: BridgedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the filter cannot be built, no sandbox opens, and the error says what to do. A suite that opens all addresses needs no filter."""
    bridged()
    monkeypatch.setattr(containers, "FILTER_DOCKERFILE", "FROM 127.0.0.1:1/no-registry\n")
    with pytest.raises(InfraError, match=r"(?s)cannot be closed.*docker load.*no-network.*private_addresses: \[\"0\.0\.0\.0/0\""):
        await open_sandbox(KEY, task(tmp_path, image=IMAGE, network="public"), 60)
    everything = ("0.0.0.0/0", "::/0")
    sandbox = await open_sandbox(KEY, task(tmp_path, image=IMAGE, network="public", private_addresses=everything), 60)
    await sandbox.end()


def test_tasks_that_need_a_filter(tmp_path: Path) -> None:
    """A task needs a filter if it has a network and not all addresses are open."""
    assert not needs_filter(task(tmp_path))
    assert needs_filter(task(tmp_path, network="public"))
    assert needs_filter(task(tmp_path, network="public", private_addresses=("0.0.0.0/0",)))
    assert not needs_filter(task(tmp_path, network="public", private_addresses=("0.0.0.0/0", "::/0")))


def test_name_servers() -> None:
    """The name servers of a resolv.conf are read, without the device of a link-local one."""
    text = "# of Docker\nsearch example.org\nnameserver 10.0.0.2\nnameserver fe80::1%eth0\nnameserver\noptions edns0\n"
    assert ("10.0.0.2", "fe80::1") == name_servers(text)
