"""What the stack of an event loop shows: whether it runs a step, for which rollout, and at which line."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from pytest_agentbench.lib.standard_streams import Log
from pytest_agentbench.records import RolloutKey
from pytest_agentbench.rollouts.attempt_context import attempt_in, current_attempt
from pytest_agentbench.rollouts.pool.watchdog import OWN_FOLDER, CodeLine, context_of, line_to_name, lines_of, step_of
from tests.blocked_loop import Block, blocked

KEY = RolloutKey("shop", "shop-3")
PACKAGE = "/shop/.venv/lib/python3/site-packages"


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ([f"{PACKAGE}/requests/api.py", "/shop/agent.py", f"{OWN_FOLDER}/rollouts.py", asyncio.__file__], "/shop/agent.py"),
        ([threading.__file__, "/shop/helper.py", "/shop/agent.py", f"{OWN_FOLDER}/rollouts.py"], "/shop/helper.py"),
        (["<frozen importlib>", "/shop/agent.py", f"{OWN_FOLDER}/pool/server.py"], "/shop/agent.py"),
        (
            [threading.__file__, f"{PACKAGE}/urllib3/pool.py", f"{PACKAGE}/my_agents/one.py", f"{OWN_FOLDER}/rollouts.py"],
            f"{PACKAGE}/my_agents/one.py",
        ),
        ([f"{OWN_FOLDER}/scorers/tsq.py", f"{OWN_FOLDER}/rollouts.py", asyncio.__file__], f"{OWN_FOLDER}/scorers/tsq.py"),
        (["/usr/lib/python3/dist-packages/x.py", f"{PACKAGE}/pytest_agentbench_more/y.py"], f"{PACKAGE}/pytest_agentbench_more/y.py"),
    ],
)
def test_the_line_that_is_named(files: list[str], named: str) -> None:
    """The user's innermost line is named, otherwise the outermost line of an installed package, otherwise the innermost line."""
    assert named == line_to_name([CodeLine(file, 1) for file in files]).file


def test_the_text_of_a_line(tmp_path: Path) -> None:
    """A line is shown with file, number and text. A file that cannot be read has no text."""
    (tmp_path / "agent.py").write_text("import time\n    time.sleep(3600)  \n")

    assert "agent.py:2: time.sleep(3600)" == str(CodeLine(str(tmp_path / "agent.py"), 2))
    assert "gone.py:2" == str(CodeLine("/nowhere/gone.py", 2))


async def in_the_task(block: Block) -> None:
    with current_attempt(KEY, Log()):
        await asyncio.sleep(0)
        block()


async def in_a_task_of_its_own(block: Block) -> None:
    async def later() -> None:
        await asyncio.sleep(0)
        block()

    with current_attempt(KEY, Log()):
        await asyncio.create_task(later())


async def in_a_callback(block: Block) -> None:
    with current_attempt(KEY, Log()):
        asyncio.get_running_loop().call_soon(block)
        await asyncio.sleep(0)
        await asyncio.sleep(0)


@pytest.mark.parametrize("run", [in_the_task, in_a_task_of_its_own, in_a_callback])
def test_a_step_that_blocks(run: Callable[[Block], Coroutine[object, object, None]]) -> None:
    """All samples show the same step, and its rollout, also in tasks and callbacks that the rollout has started."""
    with blocked(run) as stack:
        step = step_of(stack())

        assert step is not None
        assert step is step_of(stack())
        mark = attempt_in(context_of(step))
        assert mark is not None
        assert (KEY, False) == (mark.key, mark.is_over)
        assert "blocked_loop.py" == Path(line_to_name(lines_of(stack())).file).name


def test_steps_differ() -> None:
    """Two steps of one task are different, and belong to no rollout outside of an attempt."""
    steps = []

    async def run(block: Block) -> None:
        for _ in range(2):
            steps.append(step_of(sys._getframe()))
            await asyncio.sleep(0)
        block()

    with blocked(run) as stack:
        first, second, third = *steps, step_of(stack())

        assert first is not second is not third is not None
        assert attempt_in(context_of(third)) is None


def test_a_loop_that_waits() -> None:
    """A waiting loop runs no step."""
    looked, ready = threading.Event(), threading.Event()

    async def run() -> None:
        over = asyncio.Event()
        loop = asyncio.get_running_loop()
        threading.Thread(target=lambda: (looked.wait(), loop.call_soon_threadsafe(over.set))).start()
        loop.call_soon(lambda: loop.call_soon(ready.set))
        await over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    ready.wait()
    while step_of(sys._current_frames()[thread.ident or 0]) is not None:
        pass  # The loop is about to wait.
    looked.set()
    thread.join()
