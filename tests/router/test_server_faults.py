"""Engines that die and come back while the router has calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import httpx
import pytest

from pytest_agentbench.lib.process import Child
from pytest_agentbench.lib.wire import Listening
from tests.router.conftest import RouterProcess, StartRouter
from tests.waits import wait_for

CLIENTS = 8


class Sent(NamedTuple):
    """A call of the load."""

    began: float  # seconds, time.monotonic()
    status: int  # HTTP status; 0 if the answer was not complete
    worker: str  # engine that answered


class Load:
    """Clients that call the router, one call after the other, each with a session of its own, until the block ends."""

    def __init__(self, router: RouterProcess) -> None:
        self._router, self._stopped = router, threading.Event()
        self.calls: list[Sent] = []

    def __enter__(self) -> Self:
        self._pool = ThreadPoolExecutor(CLIENTS)
        self._clients = [self._pool.submit(self._run, index) for index in range(CLIENTS)]
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._pool.shutdown()
        for client in self._clients:
            client.result()

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        wait_for(condition, what, 60)

    def _run(self, index: int) -> None:
        while not self._stopped.is_set():
            began, status, worker = time.monotonic(), 0, ""
            with suppress(httpx.TransportError):
                answer = self._router.chat(f"Hello {index}", x_session_id=f"s{index}")
                status, worker = answer.status_code, answer.headers.get("x-worker-id", "")
            self.calls.append(Sent(began, status, worker))


def answered_after(load: Load, moment: float, calls: int, worker: str | None = None) -> Callable[[], bool]:
    """Returns a condition: so many calls that began after a moment were answered, by an engine or by any."""
    return lambda: calls <= sum(each.began > moment and each.status == 200 and worker in (None, each.worker) for each in load.calls)


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("preset", ["nat", "sticky"])
def test_an_engine_is_killed_and_comes_back(preset: str, tmp_path: Path, start_router: StartRouter) -> None:
    """Only calls that were in flight at a killed engine fail, and each once. When it serves again, it gets calls again."""

    def start(name: str, port: int = 0) -> tuple[Child, str]:
        config: dict[str, Any] = {"ttft_ms": 30, "worker_id": name, "port": port}
        child = Child("pytest_agentbench.engine", config, tmp_path / f"{name}.log")
        return child, f"127.0.0.1:{child.ready(Listening).port}"

    started = [start(name) for name in "abc"]
    children = [child for child, _ in started]
    victim, id = started[0]
    try:
        router = start_router([f"http://{each}" for _, each in started], preset=preset)
        with Load(router) as load:
            load.wait(answered_after(load, 0, 10, id), "calls at the engine")
            victim.process.kill()
            victim.process.wait()
            dead = time.monotonic()
            load.wait(answered_after(load, dead, 100), "calls after the death")
            again, other = start("d", int(id.rpartition(":")[2]))
            children.append(again)
            load.wait(answered_after(load, dead, 10, id), "calls at the engine that came back")
    finally:
        for child in children:
            child.stop()
    failed = [each for each in load.calls if each.status != 200]

    assert id == other
    assert [] == [each for each in failed if each.began > dead]
    assert len(failed) <= CLIENTS
    assert {id} >= {each.worker for each in router.decisions() if each.ending == "failed"}
    assert len(failed) == sum(each.ending == "failed" for each in router.decisions())
