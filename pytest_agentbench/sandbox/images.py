"""The images of tasks: pulled by name, or built from environment/ once for each content."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from pytest_agentbench.errors import InfraError
from pytest_agentbench.lib import host_locks
from pytest_agentbench.sandbox.engine import client, infra
from pytest_agentbench.suites.task import Task

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
    lock = _lock(task, on_progress)
    try:
        with closing(client()) as engine, infra(f"the image of {Path(task.folder).name}"):
            if missing := size_of(engine, image_of(task)) is None:
                _build(engine, task, on_progress)
        return missing
    finally:
        lock.release()


def _lock(task: Task, on_progress: Callable[[str], None]) -> host_locks.Lock:
    """Waits until nobody on this machine builds the same image."""
    with infra():
        while isinstance(lock := host_locks.take(f"image-{task.image_digest}", "building an image"), str):
            on_progress(f"the image of {Path(task.folder).name}: {lock}")
            time.sleep(_LOOK)
    return lock


def _build(engine: Any, task: Task, on_progress: Callable[[str], None]) -> None:
    folder, lines, fault = Path(task.folder, "environment"), list[str](), ""
    engine.api.timeout = task.build_timeout_s  # that nothing may come for
    for event in engine.api.build(path=str(folder), tag=image_of(task), network_mode="host", rm=True, forcerm=True, decode=True):
        if line := event.get("stream", "").strip():
            lines.append(line)
            if line.startswith("Step "):
                on_progress(f"building the image of {Path(task.folder).name}: {line}")
        fault = event.get("error", fault).strip()
    if fault:
        tail = "\n".join(lines[-_LAST_LINES:])
        raise InfraError(f"the image of {folder} cannot be built: {fault}; the end of what the build said:\n{tail}")
