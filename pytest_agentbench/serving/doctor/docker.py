"""The Docker Engine, what it needs for GPUs, and the images of a stack."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from typing import Any

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.serving.doctor.check import Check, missing, ok, unknown
from pytest_agentbench.serving.stackspec import StackSpec
from pytest_agentbench.serving.templates import expand

SOCKET = "/var/run/docker.sock"
PATIENCE = 5.0  # seconds that the engine gets to answer
TOOLKIT = "install nvidia-container-toolkit, then `sudo nvidia-ctk runtime configure --runtime=docker` and restart Docker"


class Engine(HTTPConnection):
    """The engine's API at its socket."""

    def __init__(self, path: str) -> None:
        super().__init__("docker", timeout=PATIENCE)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)

    def ask(self, path: str) -> tuple[int, Any]:
        """Status and body; raises OSError or HTTPException."""
        try:
            self.request("GET", path)
            answer = self.getresponse()
            return answer.status, json.loads(answer.read() or b"null")
        finally:
            self.close()


def docker_checks(spec: StackSpec) -> Iterator[Check]:
    contained = [service for service in spec.services.values() if service.image is not None]
    if not contained:
        return
    host = os.environ.get("DOCKER_HOST", f"unix://{SOCKET}")
    if not host.startswith("unix://"):
        yield unknown("docker", f"DOCKER_HOST is {host}, which is not asked", "containers need a Docker Engine on this machine")
        return
    engine = Engine(host.removeprefix("unix://"))
    try:
        _, info = engine.ask("/info")
    except (OSError, HTTPException, ValueError) as error:
        yield missing("docker", f"no Docker Engine answers at {host}: {getattr(error, 'strerror', None) or error}", _fix(error))
        return
    yield ok("docker", f"Engine {info['ServerVersion']}")
    if any(service.gpus for service in contained):
        yield _toolkit(info)
    for image in dict.fromkeys(service.image for service in contained):
        assert image is not None
        yield _image(engine, spec, image)


def _fix(error: Exception) -> str:
    if isinstance(error, PermissionError):
        return "`sudo usermod -aG docker $USER`, and log in again"
    return "install Docker and start it (`sudo systemctl start docker`), or say in DOCKER_HOST where it is"


def _toolkit(info: Any) -> Check:
    """It shows as a runtime of the engine, or by its programs."""
    if "nvidia" in info.get("Runtimes", {}):
        return ok("container toolkit", "the engine has the runtime nvidia")
    if found := shutil.which("nvidia-ctk") or shutil.which("nvidia-container-cli"):
        return ok("container toolkit", found)
    return missing("container toolkit", "containers get no GPUs without the NVIDIA Container Toolkit", TOOLKIT)


def _image(engine: Engine, spec: StackSpec, image: str) -> Check:
    values = {**{name: str(value) for name, value in spec.settings.items()}, "model": spec.model or "", "here": spec.here}
    try:
        name = expand(image, values, f"backend {spec.name!r}")
        status, found = engine.ask(f"/images/{name}/json")
    except (ConfigError, OSError, HTTPException, ValueError) as error:
        return unknown("image", f"{image}: {error}")
    if status == 200:
        return ok("image", f"{name}, {found['Size'] / 1e9:.1f} GB")
    if any(service.image == image and service.container.pull == "never" for service in spec.services.values()):
        return missing("image", f"{name} is not here, and `pull: never` forbids to fetch it", f"docker pull {name}")
    return unknown("image", f"{name} is not here yet; the first boot fetches it", f"docker pull {name}")
