"""Fixtures that start and stop stacks of small real services."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.backends.stack import ownership, registry
from pytest_agentbench.backends.stack.spec import StackSpec

SERVICE = Path(__file__).with_name("service.py")


def service(*options: str, **keys: Any) -> dict[str, Any]:
    """Returns the keys of a service: the small server, which is ready when /health answers 200."""
    return {"run": [sys.executable, str(SERVICE), "--port", "{port}", *options], "ready": {"http": "/health"}, **keys}


def spec(**keys: Any) -> StackSpec:
    """Returns a stack named `small` with one service `engine`, changed by the given keys."""
    return StackSpec(**{"name": "small", "model": "tiny", "here": str(SERVICE.parent), "services": {"engine": service()}, **keys})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of stacks for one test. Afterwards no process, lock or folder of a stack is left."""
    here = tmp_path / "s"
    monkeypatch.setenv("AGENTBENCH_STACKS", str(here))
    monkeypatch.setenv("AGENTBENCH_LOCKS", str(tmp_path / "locks"))
    yield here

    left = [of for _, of in ownership.processes() if of.startswith(str(here))]
    for home, _ in registry.running():
        registry.end(home)
    registry.clean_up()
    assert [] == left
    assert [] == list(here.glob("*"))


Boot = Callable[..., registry.HeldStack]


@pytest.fixture
def boot(tmp_path: Path) -> Iterator[Boot]:
    """Returns a function that starts a stack. Stacks that are still held at the end of the test are stopped."""
    started: list[registry.HeldStack] = []

    def start(wanted: StackSpec | None = None, *, warm_up: int = 0, gpu_wait: float = 0) -> registry.HeldStack:
        held = registry.start(wanted or spec(), tmp_path / "logs", gpu_wait=gpu_wait, warm_up=warm_up)
        started.append(held)
        return held

    yield start
    for held in started:
        held.stop()


@pytest.fixture
def daemon_log(tmp_path: Path) -> Callable[[], str]:
    """Returns a function that reads the stack daemon's log."""
    return (tmp_path / "logs" / "stack_daemon.log").read_text
