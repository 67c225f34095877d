"""Fixtures: real taps and real engines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pytest_agentbench.lib.process import Child
from pytest_agentbench.tap.client import TapControl
from pytest_agentbench.tap.protocol import TapConfig, TapListening
from tests.engines import engine
from tests.tap.peers import Tap

TOKEN = "of-the-test"

StartEngine = Callable[..., str]
StartTap = Callable[..., Child]


@pytest.fixture(scope="session")
def shared_tap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Child, TapListening]]:
    """One tap process for all tests that leave only closed ids in it."""
    child = Child("pytest_agentbench.tap", TapConfig(TOKEN), tmp_path_factory.mktemp("tap") / "tap.log")
    yield child, child.ready(TapListening)
    child.stop()


@pytest.fixture
async def tap(shared_tap: tuple[Child, TapListening]) -> AsyncIterator[Tap]:
    """A tap. After the test it must still run, have logged nothing, and have no call in flight."""
    child, ports = shared_tap
    control = await TapControl.connect(ports.control_port, TOKEN)
    tap = Tap(child, ports, control)
    yield tap
    control.close()

    assert child.process.poll() is None
    assert "" == child.log.read_text()


@pytest.fixture
def start_tap(tmp_path: Path) -> Iterator[StartTap]:
    """Starts taps for one test."""
    children: list[Child] = []

    def start(**config: Any) -> Child:
        children.append(Child("pytest_agentbench.tap", TapConfig(**config), tmp_path / f"tap-{len(children)}.log"))
        return children[-1]

    yield start
    for child in children:
        child.stop()


@pytest.fixture(scope="session")
def start_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartEngine]:
    """Starts embedded engines that answer by rules. They run until the test session ends."""
    with ExitStack() as engines:
        yield lambda *rules: f"{engines.enter_context(engine(tmp_path_factory.mktemp('engine'), rules, model='m'))}/v1"


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """A client that keeps its connections open, like the pool's."""
    async with aiohttp.ClientSession() as session:
        yield session
