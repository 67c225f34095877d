"""The Docker Engine, what it needs for GPUs, and the images of a stack."""

from __future__ import annotations

import shutil
from collections.abc import Container, Iterator
from contextlib import closing
from typing import Any

from pytest_agentbench.backends.doctor.check import Check, missing, ok, unknown
from pytest_agentbench.backends.stack.docker_engine import TOOLKIT, connect, size_of, speaking
from pytest_agentbench.backends.stack.spec import StackSpec
from pytest_agentbench.backends.stack.templates import expand
from pytest_agentbench.errors import AgentbenchError, BackendError


def docker_checks(spec: StackSpec) -> Iterator[Check]:
    contained = [service for service in spec.services.values() if service.image is not None]
    if not contained:
        return
    try:
        with closing(connect()) as engine, speaking("Docker does not say what it can do"):
            info = engine.info()
            yield ok("docker", f"Engine {info['ServerVersion']}")
            if any(service.gpus for service in contained):
                yield toolkit_check(info.get("Runtimes", {}))
            for image in dict.fromkeys(service.image for service in contained):
                yield _image(engine, spec, str(image))
    except BackendError as error:
        yield missing("docker", str(error), "")


def toolkit_check(runtimes: Container[str]) -> Check:
    """It shows as a runtime of the engine, or by its programs."""
    if "nvidia" in runtimes:
        return ok("container toolkit", "the engine has the runtime nvidia")
    if found := shutil.which("nvidia-ctk") or shutil.which("nvidia-container-cli"):
        return ok("container toolkit", found)
    return missing("container toolkit", "the engine has no runtime nvidia", TOOLKIT)


def _image(engine: Any, spec: StackSpec, image: str) -> Check:
    values = {**{name: str(value) for name, value in spec.settings.items()}, "model": spec.model or "", "here": spec.here}
    try:
        name = expand(image, values, "image")
        with speaking(f"image {name}"):
            size = size_of(engine, name)
    except AgentbenchError as error:
        return unknown("image", f"{image}: {error}")
    if size is not None:
        return ok("image", f"{name}, {size / 1e9:.1f} GB")
    if any(service.image == image and service.container.pull == "never" for service in spec.services.values()):
        return missing("image", f"{name} is not here, and `pull: never` forbids to fetch it", f"docker pull {name}")
    return unknown("image", f"{name} is not here yet; the first boot fetches it", f"docker pull {name}")
