"""A pool's process as the controller has it: it is listened to until it is dead, and one that cannot be listened to is ended."""

from __future__ import annotations

import queue
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_agentbench.rollouts.pool_config import PoolConfig
from pytest_agentbench.rollouts.protocol import CatchUp, CaughtUp, ToController
from pytest_agentbench.session.pool_process import PoolProcess
from tests.rollouts.pool.test_server import pool_settings, shop

PATIENCE = 30  # seconds until an event that does not come fails the test


@contextmanager
def started(folder: Path, hear: Callable[[ToController], None]) -> Iterator[tuple[PoolProcess, queue.SimpleQueue[bool]]]:
    """A pool that is listened to, and what is put when it has died: whether it ever served."""
    deaths: queue.SimpleQueue[bool] = queue.SimpleQueue()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def config(pipe: int) -> PoolConfig:
            return PoolConfig("secret", listener.fileno(), pipe, pool_settings(shop()), (), None)

        pool = PoolProcess(config, listener, folder / "pool.log", "mark")
        pool.begin(lambda _, message, _body: hear(message), lambda _, has_served: deaths.put(has_served))
        try:
            yield pool, deaths
        finally:
            pool.child.process.kill()


def test_it_is_listened_to_until_it_is_dead(tmp_path: Path) -> None:
    """What a pool sends is heard in its order; when it ends, that is told once, with whether it served."""
    heard: queue.SimpleQueue[ToController] = queue.SimpleQueue()
    with started(tmp_path, heard.put) as (pool, deaths):
        assert pool.send(CatchUp(1))
        assert pool.send(CatchUp(2))

        assert [CaughtUp(1), CaughtUp(2)] == [heard.get(timeout=PATIENCE) for _ in range(2)]

        pool.child.stop()

        assert deaths.get(timeout=PATIENCE)

    assert (0, True, None) == (pool.child.process.returncode, deaths.empty(), pool.last_words)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_one_that_cannot_be_listened_to(tmp_path: Path) -> None:
    """If what a pool sends cannot be read, the pool is killed instead of being left to wait for an answer, and counts as dead."""

    def fail(message: ToController) -> None:
        raise ValueError(f"{message} cannot be read")

    with started(tmp_path, fail) as (pool, deaths):
        pool.send(CatchUp(1))

        assert deaths.get(timeout=PATIENCE)
        assert -9 == pool.child.process.returncode
        obituary = pool.obituary("died")
        assert " died: the controller failed on what the pool sent, and has ended it: ValueError('CaughtUp(number=1) " in obituary
        assert "SIGKILL" not in obituary
