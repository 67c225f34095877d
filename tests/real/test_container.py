"""The real NVIDIA Dynamo in containers of a real Docker Engine, without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from pytest_agentbench.backends.stack.ownership import LABEL
from pytest_agentbench.errors import MissingError
from tests.dockerd import NoEngine, any_engine
from tests.real import dynamo_image
from tests.real.booted_stack import STACKS, booted

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yields a client of the engine that the stack uses."""
    try:
        with any_engine() as url:
            monkeypatch.setenv("DOCKER_HOST", url)
            client = docker.from_env()
            yield client
            client.close()
    except NoEngine as why:
        pytest.skip(f"NOT TESTED: {why}")


def test_mocker_in_containers(engine: Any, tmp_path: Path) -> None:
    """A frontend and workers in containers find each other and answer. No container is left afterwards."""
    try:
        image = dynamo_image.image()
    except MissingError as why:
        pytest.skip(f"NOT TESTED: {why}")
    with booted(f"{STACKS}/mocker-container.yaml", tmp_path, [("settings.image", image)]) as stack:
        running = sorted(each.name.rpartition("-")[0] for each in engine.containers.list(filters={"label": LABEL}))
        answer = stack.chat("How are you?")

    assert 3 == len(running)
    assert 8 == answer["usage"]["completion_tokens"]
    assert "2 aggregated" in [rung["detail"] for rung in stack.boot["proof"]]
    assert stack.log("frontend")
    assert [] == engine.containers.list(all=True, filters={"label": LABEL})
