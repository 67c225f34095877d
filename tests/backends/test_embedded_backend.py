"""The embedded backend: the built-in engine in a process of its own."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.backends.embedded import Embedded, EmbeddedSpec
from pytest_agentbench.backends.ready import listed_models
from pytest_agentbench.errors import BackendError

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script with one constant answer."""
    file = tmp_path / "script.yaml"
    file.write_text(json.dumps([{"text": "Hello."}]))
    return file


@pytest.fixture
def backends() -> Iterator[list[Embedded]]:
    """Backends that are stopped after the test."""
    started: list[Embedded] = []
    yield started
    for backend in started:
        backend.stop()


def make(backends: list[Embedded], script: Path, **keys: Any) -> Embedded:
    backends.append(Embedded(EmbeddedSpec(kind="embedded", name="mine", policy="script", script=str(script), **keys)))
    return backends[-1]


def watching(backend: Embedded) -> tuple[threading.Thread, list[str | None]]:
    """Starts a thread that watches a backend. Returns the thread and the reason of the death."""
    told: list[str | None] = []
    thread = threading.Thread(target=lambda: told.append(backend.watch(lambda _: False)))
    thread.start()
    return thread, told


def test_it_serves(backends: list[Embedded], script: Path, tmp_path: Path) -> None:
    """The engine listens on 127.0.0.1, uses the given model name or the policy's, and logs into the run's directory."""
    plain, named = (make(backends, script, **keys).start(tmp_path / "logs") for keys in ({}, {"model": "small"}))

    assert ("mine", "embedded-script", ["embedded-script"]) == (plain.backend, plain.model, listed_models(plain))
    assert ("small", ["small"]) == (named.model, listed_models(named))
    assert plain.url.startswith("http://127.0.0.1:")
    assert (tmp_path / "logs" / "engine.log").is_file()


def test_its_description_in_a_run(backends: list[Embedded], script: Path) -> None:
    """The description in run.json has the settings that are set."""
    described = make(backends, script, ttft_ms=40, note="a baseline", thresholds={"shop": {"tsq": 0.5}}).description

    assert {"kind": "embedded", "policy": "script", "ttft_ms": 40.0, "note": "a baseline"}.items() <= described.items()
    assert not {"thresholds", "model"} & described.keys()


def test_a_death_is_noticed(backends: list[Embedded], script: Path, tmp_path: Path) -> None:
    """The death of the engine is reported with its exit code and log."""
    backend = make(backends, script)
    backend.start(tmp_path)
    thread, told = watching(backend)
    assert backend.child is not None
    backend.child.process.kill()
    thread.join()

    (exit_message,) = told
    assert exit_message is not None
    died = "`python -m pytest_agentbench.engine` died in the middle of the run (exit code -9); it was killed by SIGKILL, "
    assert exit_message.startswith(died)


def test_a_stop_is_not_a_death(backends: list[Embedded], script: Path, tmp_path: Path) -> None:
    """A stopped backend does not count as dead. It can be stopped twice, and without a start."""
    backend = make(backends, script)
    backend.start(tmp_path)
    thread, told = watching(backend)
    backend.stop()
    thread.join()
    backend.stop()
    make(backends, script).stop()

    assert [None] == told


def test_settings_with_which_it_does_not_start(backends: list[Embedded], tmp_path: Path) -> None:
    """An engine that refuses its settings raises BackendError with the engine's message."""
    with pytest.raises(BackendError, match=r"died before it was ready \(exit code 2\); the end of engine.log:\n.*no\.yaml"):
        make(backends, tmp_path / "no.yaml").start(tmp_path)


def test_its_port_stays_its_own(backends: list[Embedded], script: Path, tmp_path: Path) -> None:
    """No other process can take a free port between two engines, even with SO_REUSEPORT. A fixed port is not shared."""
    backend = make(backends, script)
    backend.start(tmp_path)
    assert backend.child is not None
    backend.child.process.kill()
    backend.child.process.wait()

    for reuse in (0, 1):
        with socket.socket() as another:
            another.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
            with pytest.raises(OSError, match="Address already in use"):
                another.bind(("127.0.0.1", backend.port))
    backend.stop()
    first = make(backends, script, port=backend.port)
    first.start(tmp_path)
    with pytest.raises(BackendError, match=f"cannot listen on port {backend.port} of 127.0.0.1"):
        make(backends, script, port=backend.port).start(tmp_path / "second")
