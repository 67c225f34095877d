"""Fixtures: a real Docker Engine with a small image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import docker
import pytest

from pytest_agentbench.backends.stack.container import Container
from pytest_agentbench.backends.stack.ownership import LABEL
from pytest_agentbench.backends.stack.spec import ContainerSpec
from tests.containers import images
from tests.dockerd import NoEngine, OwnEngine, any_engine

IMAGE = "pytest-agentbench/busybox:test"

Run = Callable[..., Container]


@pytest.fixture(scope="session")
def engine_url() -> Iterator[str]:
    """Yields the DOCKER_HOST of an engine that has IMAGE."""
    if not images.busybox_is_static():
        pytest.skip("NOT TESTED: containers; the image is made from a static busybox (Debian: busybox-static)")
    try:
        with any_engine() as url:
            client = docker.DockerClient(base_url=url)
            put_image(client, IMAGE)
            yield url
            client.images.remove(IMAGE, force=True)
            client.close()
    except NoEngine as why:
        pytest.skip(f"NOT TESTED: containers; {why}")


def put_image(client: Any, image: str, *changes: str) -> None:
    repository, _, tag = image.partition(":")
    client.api.import_image_from_data(images.root(), repository=repository, tag=tag, changes=list(changes))


@pytest.fixture
def engine(engine_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yields a client of the engine that the package uses in this test."""
    monkeypatch.setenv("DOCKER_HOST", engine_url)
    client = docker.from_env()
    yield client
    client.close()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Returns a function that makes containers of the stack `t` without starting them. They are stopped at the end."""
    made: list[Container] = []

    def make(command: str | Sequence[str], *, name: str = "service", image: str = IMAGE, **values: Any) -> Container:
        words = ["sh", "-c", command] if isinstance(command, str) else list(command)
        settings: dict[str, Any] = {"env": {}, "labels": {LABEL: "t"}, "gpu_ids": (), "log": tmp_path / f"{name}.log", **values}
        spec = settings.pop("spec", ContainerSpec())
        made.append(Container(name, image, words, spec, settings.pop("env"), **settings))
        return made[-1]

    yield make
    for container in made:
        container.stop(0)


@pytest.fixture
def own_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnEngine]:
    """Yields an engine that has the image, and that a test may kill."""
    try:
        engine = OwnEngine()
        engine.start()
    except NoEngine as why:
        pytest.skip(f"NOT TESTED: an engine that dies; {why}")
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    with closing(docker.from_env()) as client:
        put_image(client, IMAGE)
    yield engine
    engine.end()
    engine.remove()
