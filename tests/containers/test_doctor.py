"""Checks of a Docker Engine and its images by `agentbench doctor`."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_agentbench.backends.doctor.check import Check
from pytest_agentbench.backends.doctor.host import docker_checks
from pytest_agentbench.backends.stack.spec import StackSpec
from tests.containers.conftest import IMAGE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def found(*services: dict[str, Any], **keys: Any) -> list[Check]:
    named = {f"s{number}": service for number, service in enumerate(services)}
    return [*docker_checks(StackSpec(**{"name": "mine", "services": named, **keys}))]


def test_images(engine: Any) -> None:
    """The engine is named. Each image exists, will be pulled, or is missing and may not be pulled."""
    repository, _, tag = IMAGE.partition(":")
    docker, *images = found(
        {"image": f"{{image}}:{tag}"},
        {"image": "org/other"},
        {"image": "org/fixed", "container": {"pull": "never"}},
        settings={"image": repository},
    )

    assert Check("docker", "ok", f"Engine {engine.version()['Version']}") == docker
    assert ["ok", "unknown", "missing"] == [check.state for check in images]
    assert images[0].detail.startswith(f"{IMAGE}, ")


def test_gpus(engine: Any) -> None:
    """The NVIDIA Container Toolkit is checked only if containers need GPUs."""
    assert ["docker", "image"] == [check.name for check in found({"image": IMAGE})]
    assert ["docker", "container toolkit", "image"] == [check.name for check in found({"image": IMAGE, "gpus": 1})]


def test_services_that_are_processes() -> None:
    """Without containers, Docker is not checked."""
    assert [] == found({"run": ["sh"]})
