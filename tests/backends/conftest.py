"""Stacks of small real services, started and ended by each test; nothing of them is left."""

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
    """A service of a stack: the small server, ready when its /health says so."""
    return {"run": [sys.executable, str(SERVICE), "--port", "{port}", *options], "ready": {"http": "/health"}, **keys}


def spec(**keys: Any) -> StackSpec:
    """A stack named `small`; one `engine` unless the keys say something else."""
    return StackSpec(**{"name": "small", "model": "tiny", "here": str(SERVICE.parent), "services": {"engine": service()}, **keys})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The stacks' folder of the test. Afterwards no process, no lock and no folder of a stack is left."""
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
    """Starts a stack daemon with a stack; what is still held when the test ends is stopped."""
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
    """What the stack daemon wrote down so far."""
    return (tmp_path / "logs" / "stack_daemon.log").read_text
