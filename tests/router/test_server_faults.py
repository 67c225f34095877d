"""Engines that die, come back, stand still, join and leave while the router has calls."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from pytest_agentbench.lib.process import Child
from pytest_agentbench.lib.wire import Listening
from pytest_agentbench.records import Json
from tests.client_load import Load
from tests.router.conftest import RouterProcess, StartRouter
from tests.waits import wait_for

CLIENTS = 8


def load_on(router: RouterProcess) -> Load:
    """Returns clients that call the router in sessions of ten calls each."""

    def call(client: int, number: int) -> tuple[int, str]:
        with suppress(httpx.TransportError):
            answer = router.chat(f"Hello {client}", x_session_id=f"s{client}-{number // 10}", x_prefix_total_requests="10")
            return answer.status_code, answer.headers.get("x-worker-id", "")
        return 0, ""

    return Load(CLIENTS, call)


def wait(condition: Callable[[], bool], what: str) -> None:
    wait_for(condition, what, 60)


def answered_after(load: Load, moment: float, calls: int, worker: str | None = None) -> Callable[[], bool]:
    """Returns a condition: so many calls that began after a moment were answered, by an engine or by any."""
    return lambda: calls <= load.answered_after(moment, worker)


class Engines:
    """Built-in engines of a test, each a process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.children: list[Child] = []

    def start(self, ttft_ms: float = 30, port: int = 0) -> tuple[Child, str]:
        """Returns the process of a new engine and its id at the router."""
        child = Child("pytest_agentbench.engine", {"ttft_ms": ttft_ms, "port": port}, self._folder / f"engine-{len(self.children)}.log")
        self.children.append(child)
        return child, f"127.0.0.1:{child.ready(Listening).port}"


@contextmanager
def running(folder: Path) -> Iterator[Engines]:
    engines = Engines(folder)
    try:
        yield engines
    finally:
        for child in engines.children:
            child.stop()


class Cluster:
    """A router under load, and what happens to its engines. Each method waits until the router has dealt with it."""

    def __init__(self, engines: Engines, router: RouterProcess, load: Load) -> None:
        self._engines, self._router, self._load = engines, router, load
        self._workers = f"{router.url}/workers"

    def workers(self) -> dict[str, Json]:
        return {each["id"]: each for each in httpx.get(self._workers).json()["workers"]}

    def kill(self, engine: tuple[Child, str]) -> float:
        """Kills an engine that has calls. Returns the time of its death."""
        child, id = engine
        wait(answered_after(self._load, 0, 10, id), "calls at the engine")
        child.process.kill()
        child.process.wait()
        dead = time.monotonic()
        wait(answered_after(self._load, dead, 60), "calls after the death")
        return dead

    def restart_slower(self, id: str) -> None:
        """Starts an engine anew on its port. It is four times slower than others."""
        began = time.monotonic()
        self._engines.start(ttft_ms=120, port=int(id.rpartition(":")[2]))
        wait(answered_after(self._load, began, 5, id), "calls at the engine that came back slower")

    def suspend(self, engine: tuple[Child, str]) -> None:
        """Suspends an engine until it has a call, and longer while others answer. Then it goes on."""
        child, id = engine
        began = time.monotonic()
        child.process.send_signal(signal.SIGSTOP)
        try:
            wait(lambda: self.workers()[id]["load"] > 0, "a call at the suspended engine")
            wait(lambda: answered_after(self._load, began, 20)() or self.workers()[id]["load"] == CLIENTS, "other calls")
        finally:
            child.process.send_signal(signal.SIGCONT)
        wait(answered_after(self._load, began, 5, id), "calls at the engine that goes on")

    def join(self) -> str:
        """Starts another engine, and returns its id."""
        _, id = self._engines.start()
        began = time.monotonic()
        assert 202 == httpx.post(self._workers, json={"url": f"http://{id}"}).status_code
        wait(answered_after(self._load, began, 5, id), "calls at the engine that joined")
        return id

    def leave(self, engine: tuple[Child, str]) -> float:
        """Takes an engine away, and stops it when its last call has ended. Returns the time from which it got no calls."""
        child, id = engine
        assert 202 == httpx.delete(f"{self._workers}/{id}").status_code
        left = time.monotonic()
        wait(lambda: httpx.get(f"{self._workers}/{id}").status_code == 404, "the last call at the engine that leaves")
        child.stop()
        wait(answered_after(self._load, left, 60), "calls after the engine has left")
        return left


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("preset", ["nat", "sticky"])
def test_the_fault_table(preset: str, tmp_path: Path, start_router: StartRouter) -> None:
    """Only calls in flight at a killed engine fail, each once. None fails if an engine is slow, stands still, joins or leaves."""
    with running(tmp_path) as engines:
        killed, suspended, leaving = (engines.start() for _ in range(3))
        router = start_router([f"http://{id}" for _, id in (killed, suspended, leaving)], preset=preset)
        with load_on(router) as load:
            cluster = Cluster(engines, router, load)
            dead = cluster.kill(killed)
            cluster.restart_slower(killed[1])
            cluster.suspend(suspended)
            joined = cluster.join()
            left = cluster.leave(leaving)
        listed = {*cluster.workers()}
    failed = [each for each in load.calls if each.status != 200]
    logged = [each for each in router.decisions() if each.ending == "failed"]

    assert {killed[1], suspended[1], joined} == listed
    assert [] == [each for each in failed if each.began > dead]
    assert len(failed) <= CLIENTS
    assert [killed[1]] * len(failed) == [each.worker for each in logged]
    assert [] == [each for each in load.calls if each.worker == leaving[1] and each.began > left]
