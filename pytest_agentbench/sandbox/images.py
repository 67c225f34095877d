"""The images of tasks: pulled by name, or built from environment/ once for each content."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from pytest_agentbench.errors import InfraError
from pytest_agentbench.lib import file_system
from pytest_agentbench.sandbox.containers import client, infra
from pytest_agentbench.suites.suite import Task

#: The program `nft`, with which sandbox.private_addresses closes private addresses.
FILTER_IMAGE, FILTER_DOCKERFILE = "agentbench-network-filter:1", "FROM alpine:3.20\nRUN apk add --no-cache nftables\n"
FILTER_BUILD_S = 120.0
WITHOUT_A_FILTER = (
    'say network_mode = \'no-network\' in task.toml, or open all addresses with `private_addresses: ["0.0.0.0/0", "::/0"]` in suite.yaml'
)

_LOOK = 0.2  # seconds between two looks at a lock
_LAST_LINES = 20  # of a build that failed


def image_of(task: Task) -> str:
    """The name of a task's image in the engine."""
    return task.image or f"agentbench-task:{task.image_digest}"


def make_image(task: Task, on_progress: Callable[[str], None]) -> bool:
    """Sees to it that the engine has a task's image: whether it had none. Raises InfraError with why it cannot."""
    from pytest_agentbench.backends.stack.docker_engine import fetch, size_of

    if task.image:
        with closing(client()) as engine, infra():
            missing = size_of(engine, task.image) is None
            fetch(task.image, "missing", on_progress)
        return missing
    source = {"path": str(Path(task.folder, "environment"))}
    return _made(image_of(task), f"the image of {Path(task.folder).name}", source, task.build_timeout_s, on_progress)


def make_filter_image(on_progress: Callable[[str], None]) -> bool:
    """The same for FILTER_IMAGE."""
    source = {"fileobj": io.BytesIO(FILTER_DOCKERFILE.encode())}
    try:
        return _made(FILTER_IMAGE, f"the image {FILTER_IMAGE}", source, FILTER_BUILD_S, on_progress)
    except InfraError as error:
        raise InfraError(
            f"private addresses cannot be closed to sandboxes with the network `public`: {error}; build it where there is internet "
            f"(`printf '{FILTER_DOCKERFILE.encode('unicode_escape').decode()}' | docker build -t {FILTER_IMAGE} -`) and bring it by "
            f"`docker save` and `docker load`, or {WITHOUT_A_FILTER}"
        ) from error


def _made(name: str, what: str, source: Mapping[str, Any], seconds: float, on_progress: Callable[[str], None]) -> bool:
    """Builds an image from a `source` that the engine's client understands, unless there is one; whether there was none."""
    from pytest_agentbench.backends.stack.docker_engine import size_of

    lock = _lock(name, what, on_progress)
    try:
        with closing(client()) as engine, infra(what):
            if missing := size_of(engine, name) is None:
                engine.api.timeout = seconds  # that nothing may come for
                _build(engine, name, what, source, on_progress)
        return missing
    finally:
        lock.release()


def _lock(name: str, what: str, on_progress: Callable[[str], None]) -> file_system.Lock:
    """Waits until nobody on this machine builds the same image."""
    with infra():
        while isinstance(lock := file_system.take(f"image-{name}", "building an image"), str):
            on_progress(f"{what}: {lock}")
            time.sleep(_LOOK)
    return lock


def _build(engine: Any, name: str, what: str, source: Mapping[str, Any], on_progress: Callable[[str], None]) -> None:
    lines, fault = list[str](), ""
    for event in engine.api.build(tag=name, network_mode="host", rm=True, forcerm=True, decode=True, **source):
        if line := event.get("stream", "").strip():
            lines.append(line)
            if line.startswith("Step "):
                on_progress(f"building {what}: {line}")
        fault = event.get("error", fault).strip()
    if fault:
        tail = "\n".join(lines[-_LAST_LINES:])
        where = source.get("path", "its Dockerfile")
        raise InfraError(f"the image of {where} cannot be built: {fault}; the end of what the build said:\n{tail}")
