"""Fixtures: a real Docker Engine with an image that has bash, and sandboxes in it."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, closing
from pathlib import Path
from types import MappingProxyType
from typing import Any

import docker
import pytest

from pytest_agentbench.lib.file_system import lock
from pytest_agentbench.records import RolloutKey
from pytest_agentbench.sandbox.containers import OWNER
from pytest_agentbench.sandbox.factory import open_sandbox
from pytest_agentbench.sandbox.sandbox import Sandbox
from pytest_agentbench.suites.suite import Task
from tests.dockerd import NoEngine, any_engine
from tests.sandbox import image
from tests.sandbox.bridged import bridged_engine

IMAGE = f"pytest-agentbench/bash:test-{os.getpid()}"  # workers of pytest-xdist may share an engine
KEY = RolloutKey("terminal", "copy-a-file")

Open = Callable[..., AbstractAsyncContextManager[Sandbox]]
BridgedEngine = Callable[..., None]


@pytest.fixture(scope="session")
def engine_url() -> Iterator[str]:
    """Yields the DOCKER_HOST of an engine that has IMAGE."""
    try:
        with any_engine() as url:
            client = docker.DockerClient(base_url=url)
            repository, _, tag = IMAGE.partition(":")
            client.api.import_image_from_data(image.root(), repository=repository, tag=tag, changes=["WORKDIR /app"])
            yield url
            client.images.remove(IMAGE, force=True)
            client.close()
    except NoEngine as why:
        pytest.skip(f"NOT TESTED: sandboxes; {why}")


@pytest.fixture
def engine(engine_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yields a client of the engine that the package uses in this test. No other test with this fixture uses it at the same time."""
    monkeypatch.setenv("DOCKER_HOST", engine_url)
    name = hashlib.sha256(engine_url.encode()).hexdigest()[:16]
    with Path(tempfile.gettempdir(), f"agentbench-tests-{name}.lock").open("w") as file, closing(docker.from_env()) as client:
        lock(file, wait=True)
        yield client


@pytest.fixture
def bridged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BridgedEngine]:
    """Returns a function that makes the package use an engine of the tests, with quotas and a network."""
    with ExitStack() as stack:

        def make(*addresses: str, images: Mapping[str, Sequence[str]] = MappingProxyType({})) -> None:
            try:
                url = stack.enter_context(bridged_engine(tmp_path, images, addresses))
            except NoEngine as why:
                pytest.skip(f"NOT TESTED: sandboxes with quotas and the network `public`; {why}")
            monkeypatch.setenv("DOCKER_HOST", url)

        yield make


def listed(engine: Any, **given: Any) -> list[Any]:
    """Returns the containers of sandboxes in an engine, also those of other tests."""
    return list(engine.containers.list(filters={"label": OWNER}, ignore_removed=True, **given))


def runs(container: Any, program: str) -> bool:
    """Returns whether a process in the sandbox has a command line with this end."""
    return any(line[-1].endswith(program) for line in container.top()["Processes"])


def task(folder: Path, **values: Any) -> Task:
    """Returns a task with low limits."""
    return Task(**{"folder": str(folder), "digest": "0" * 16, "image": IMAGE, "memory_mb": 256, "network": "no-network", **values})


@pytest.fixture
def opened(engine: Any, tmp_path: Path) -> Open:
    """Returns a function that opens a sandbox of a task with these values until the block ends."""

    @asynccontextmanager
    async def make(**values: Any) -> AsyncIterator[Sandbox]:
        sandbox = await open_sandbox(KEY, task(tmp_path, **values), 60, "a-run")
        try:
            yield sandbox
        finally:
            await sandbox.end()

    return make
