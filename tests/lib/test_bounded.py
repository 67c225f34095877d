"""A time limit that also works for code that ignores cancellation."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any

import pytest

from pytest_agentbench.lib.abandoned import current_run, refuse_abandoned
from pytest_agentbench.lib.bounded import TASK_LEFT, THREAD_LEFT, run_bounded
from pytest_agentbench.lib.threads import in_thread

colour: ContextVar[str] = ContextVar("colour", default="none")


class Stubborn:
    """Code that ignores cancellation until the test is over."""

    def __init__(self) -> None:
        self.released = asyncio.Event()
        self.cancelled = 0  # number of cancellations
        self.refused = asyncio.Event()

    async def run(self) -> str:
        while not self.released.is_set():
            try:
                await self.released.wait()
            except BaseException:
                self.cancelled += 1
        try:
            await refuse_abandoned()
        except asyncio.CancelledError:
            self.refused.set()
        return "done"


@pytest.fixture
async def stubborn() -> AsyncIterator[Stubborn]:
    """Yields code that ignores cancellation. It ends with the test, because a closing event loop waits for all its tasks."""
    code = Stubborn()
    yield code
    code.released.set()
    if running := {each for each in asyncio.all_tasks() if each is not asyncio.current_task()}:
        await asyncio.wait(running, timeout=30)


async def test_code_that_ends() -> None:
    """A value is returned, and the code runs in a copy of its caller's context."""
    colour.set("red")

    async def paint() -> str:
        seen = colour.get()
        colour.set("blue")
        return seen

    end = await run_bounded(paint, 60)

    assert ("red", False, "") == (end.result(), end.took_too_long, end.left)
    assert "red" == colour.get()


@pytest.mark.parametrize(
    "error", [KeyError("lamp"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError("its own")]
)
async def test_code_that_raises(error: BaseException) -> None:
    """Every error is returned as a value, also one that would end an event loop."""

    async def fail() -> None:
        raise error

    end = await run_bounded(fail, 60)

    assert (error, False, False) == (end.error, end.expired, end.took_too_long)


async def test_code_that_cancels_itself() -> None:
    """Code that cancels itself does not cancel its caller."""

    async def give_up() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(60)

    end = await run_bounded(give_up, 60)

    assert (True, False) == (isinstance(end.error, asyncio.CancelledError), end.took_too_long)


@pytest.mark.parametrize(
    ("answer", "value", "late"),
    [("raise", None, True), ("raise TimeoutError", None, True), ("return 1", 1, False), ("raise KeyError", None, False)],
)
async def test_code_that_ends_when_it_is_cancelled(answer: str, value: int | None, late: bool) -> None:
    """Cancelled code took too long, unless it returns a result or raises its own error."""
    names: dict[str, Any] = {"asyncio": asyncio}
    exec(f"async def work():\n    try:\n        await asyncio.sleep(60)\n    except BaseException:\n        {answer}", names)

    end = await run_bounded(names["work"], 0.01)

    assert (value, late, True, "") == (end.value, end.took_too_long, end.expired, end.left)


async def test_code_that_does_not_end(stubborn: Stubborn) -> None:
    """Code that ignores cancellation is left running after the grace period, and its later requests are refused."""
    end = await run_bounded(stubborn.run, 0.01, grace=0.01)

    assert (True, TASK_LEFT, None, 1) == (end.took_too_long, end.left, end.error, stubborn.cancelled)

    stubborn.released.set()
    async with asyncio.timeout(30):
        await stubborn.refused.wait()


async def test_a_caller_that_is_cancelled(stubborn: Stubborn) -> None:
    """If the caller is cancelled, its cancellation is raised after the grace period, even if the code still runs."""
    caller = asyncio.create_task(run_bounded(stubborn.run, 60, grace=0.01))
    await asyncio.sleep(0.01)
    caller.cancel()
    async with asyncio.timeout(30):
        await asyncio.wait([caller])

    assert (True, 1, False) == (caller.cancelled(), stubborn.cancelled, stubborn.released.is_set())


async def test_a_caller_that_is_cancelled_twice() -> None:
    """A second cancellation does not shorten the grace period, and is not lost if it comes after the time limit."""
    ending, cleaned = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ending.set()
            await asyncio.sleep(0.05)
            cleaned.set()

    caller = asyncio.create_task(run_bounded(work, 0.01))
    await ending.wait()
    caller.cancel()
    await asyncio.wait([caller])

    assert (True, True) == (caller.cancelled(), cleaned.is_set())


async def test_a_run_within_an_abandoned_one(stubborn: Stubborn) -> None:
    """Code with its own limit that an abandoned run has started is abandoned, too."""
    seen: list[bool] = []

    async def inner() -> None:
        await stubborn.run()
        run = current_run.get()
        seen.append(run is not None and run.is_abandoned)

    async def outer() -> None:
        while not seen:
            await run_bounded(inner, None, grace=60)

    end = await run_bounded(outer, 0.01, grace=0.01)
    stubborn.released.set()
    async with asyncio.timeout(30):
        await stubborn.refused.wait()
        await asyncio.sleep(0.01)

    assert (TASK_LEFT, [True]) == (end.left, seen)


async def test_code_that_is_not_abandoned() -> None:
    """Requests are not refused before the time limit, in tasks that outlive code which ended in time, and outside of any run."""
    later: list[asyncio.Task[None]] = []

    async def work() -> None:
        await refuse_abandoned()
        later.append(asyncio.create_task(refuse_abandoned()))

    await refuse_abandoned()
    (await run_bounded(work, 60)).result()

    await later[0]


async def test_a_thread_that_runs_on() -> None:
    """The end mentions a thread that was left running, but not one that has returned."""
    release = threading.Event()

    async def work() -> None:
        await in_thread(time.sleep, 0)
        await in_thread(release.wait, 30)

    async def wait() -> None:
        await in_thread(time.sleep, 0)
        await asyncio.sleep(60)

    running, ended = await run_bounded(work, 0.05), await run_bounded(wait, 0.05)
    release.set()

    assert (True, THREAD_LEFT) == (running.took_too_long, running.left)
    assert (True, "") == (ended.took_too_long, ended.left)
