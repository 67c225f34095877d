"""The controller reads the messages of a pool process until it has died, and kills one whose messages it cannot read."""

from __future__ import annotations

import os
import queue
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_agentbench.lib import json_text
from pytest_agentbench.lib.wire import header
from pytest_agentbench.records import Rollout
from pytest_agentbench.rollouts.parts.pool_and_tap_processes import PoolProcess
from pytest_agentbench.rollouts.protocol import BlockedBy, CatchUp, CaughtUp, PoolConfig, ShowUser, ToController
from tests.rollouts.pool.test_server import empty_run, pool_settings, shop

PATIENCE = 30  # seconds to wait for an event before the test fails


@contextmanager
def started(
    folder: Path, hear: Callable[[ToController], None], words: bytes = b""
) -> Iterator[tuple[PoolProcess, queue.SimpleQueue[bool]]]:
    """Starts a pool and reads its messages. `deaths` gets whether it ever served. `words` are in its pipe before it starts."""
    deaths: queue.SimpleQueue[bool] = queue.SimpleQueue()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def config(pipe: int) -> PoolConfig:
            os.write(pipe, words)
            return PoolConfig("secret", listener.fileno(), pipe, pool_settings(shop()), 1, empty_run(folder / "run"), 0)

        pool = PoolProcess(config, listener, folder / "pool.log", "mark")
        pool.begin(lambda _, message, _body: hear(message), lambda _, has_served: deaths.put(has_served))
        try:
            yield pool, deaths
        finally:
            pool.child.process.kill()


def test_messages_are_handled_until_its_death(tmp_path: Path) -> None:
    """Messages of a pool are handled in their order. Its death is reported once, with whether it served."""
    messages: queue.SimpleQueue[ToController] = queue.SimpleQueue()
    with started(tmp_path, messages.put) as (pool, deaths):
        assert pool.send(CatchUp(1))
        assert pool.send(CatchUp(2))

        assert [CaughtUp(1), CaughtUp(2)] == [messages.get(timeout=PATIENCE) for _ in range(2)]

        pool.child.stop()

        assert deaths.get(timeout=PATIENCE)

    assert (0, True, None) == (pool.child.process.returncode, deaths.empty(), pool.blocked_rollout)


def test_last_messages_that_cannot_be_read(tmp_path: Path) -> None:
    """Each whole line that cannot be read becomes a sentence for the user, and later lines are read. A truncated line is ignored."""
    end = Rollout("shop", "s-0", "default", 1, "agent_error", "it blocks")
    lines = [b"{", b'["BlockedBy", {"rollout": 5}]', json_text.dumps_any(header(BlockedBy(end))), b'["ShowU']
    messages: queue.SimpleQueue[ToController] = queue.SimpleQueue()
    with started(tmp_path, messages.put, b"\n".join(lines)) as (pool, deaths):
        pool.child.stop()
        deaths.get(timeout=PATIENCE)

    first, second = messages.get_nowait(), messages.get_nowait()
    assert messages.empty()
    assert isinstance(first, ShowUser)
    assert "a message that the pool wrote while its event loop was blocked cannot be read: Expecting property name" in first.sentence
    assert ShowUser(f"{first.sentence.split(': ')[0]}: rollout is a whole number, not an object") == second
    assert end == pool.blocked_rollout


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_message_that_cannot_be_read(tmp_path: Path) -> None:
    """If a message of a pool cannot be read, the pool is killed instead of waiting for an answer, and counts as dead."""

    def fail(message: ToController) -> None:
        raise ValueError(f"{message} cannot be read")

    with started(tmp_path, fail) as (pool, deaths):
        pool.send(CatchUp(1))

        assert deaths.get(timeout=PATIENCE)
        assert -9 == pool.child.process.returncode
        exit_message = pool.exit_message("died")
        assert " died: the controller failed on a message of the pool and killed it: ValueError('CaughtUp(number=1) " in exit_message
        assert "SIGKILL" not in exit_message


def test_a_pool_that_cannot_be_started(tmp_path: Path) -> None:
    """If the config cannot be made, no descriptor of the pipe stays open."""
    writers: list[int] = []

    def config(pipe: int) -> PoolConfig:
        writers.append(os.dup(pipe))
        raise ValueError("no config")

    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(ValueError, match=r"^no config$"):
        PoolProcess(config, listener, tmp_path / "pool.log", "mark")

    with os.fdopen(writers[0], "wb", buffering=0) as pipe, pytest.raises(BrokenPipeError):
        pipe.write(b"{}")
