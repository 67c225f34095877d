"""A time limit for user code that also holds if the code does not end when it is cancelled."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pytest_agentbench.lib.abandoned import BoundedRun, current_run

T = TypeVar("T")

GRACE = 5.0  # seconds that code has to end in after it was cancelled

TASK_LEFT = "; its code did not end when it was cancelled, and was left running"
THREAD_LEFT = "; its code runs in a thread, which cannot be cancelled, and was left running"


@dataclass(frozen=True)
class End(Generic[T]):
    """The end of user code. An error is kept as a value, so that SystemExit and KeyboardInterrupt do not end the event loop."""

    value: T | None = None
    error: BaseException | None = None  # what the code raised; None also if it was left running
    expired: bool = False  # its time was over before it ended
    left: str = ""  # a clause for the reason of its failure, if some of its code still runs

    @property
    def took_too_long(self) -> bool:
        """Whether the code ended because its time was over. Code that returns a result when it is cancelled has that result."""
        return self.expired and (self.left == TASK_LEFT or isinstance(self.error, asyncio.CancelledError | TimeoutError))

    def result(self) -> T:
        """Returns the value of code that has ended, or raises its error."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # code that has ended without an error has a value


#: Tasks that were left running. The event loop itself has only weak references to them.
_left: set[asyncio.Task[Any]] = set()


async def run_bounded(work: Callable[[], Awaitable[T]], seconds: float | None, *, grace: float = GRACE) -> End[T]:
    """Runs user code as a task of its own and returns its end, which is late by `grace` seconds at most.

    The code is cancelled after `seconds` (None: there is no limit), or when the caller is cancelled. If it still runs `grace` seconds
    later, it is left running, and `lib.abandoned` refuses what it asks for.

    Raises:
        asyncio.CancelledError: The caller was cancelled. Code that cancels itself has an `End` with that error.
    """
    run = BoundedRun(current_run.get())
    context = contextvars.copy_context()
    context.run(current_run.set, run)
    task = asyncio.create_task(end_of(work), context=context)
    try:
        await asyncio.wait([task], timeout=seconds)
    except asyncio.CancelledError:
        await _stop(task, run, grace)
        raise
    if task.done():
        return _result(task)
    if await _stop(task, run, grace):
        raise asyncio.CancelledError
    if not task.done():
        return End(expired=True, left=TASK_LEFT)
    end = _result(task)
    return End(end.value, end.error, expired=True, left=THREAD_LEFT if run.abandoned else "")


async def end_of(work: Callable[[], Awaitable[T]]) -> End[T]:
    """Runs a coroutine function in this task, without a limit, and returns its end."""
    try:
        return End(await work())
    except BaseException as error:
        return End(error=error)


def _result(task: asyncio.Task[End[T]]) -> End[T]:
    """Returns the end of a task. One that was cancelled before its first step has not run `end_of`."""
    return End(error=asyncio.CancelledError()) if task.cancelled() else task.result()


async def _stop(task: asyncio.Task[Any], run: BoundedRun, grace: float) -> bool:
    """Cancels a task and waits until it ends, `grace` seconds at most. Returns whether the caller was cancelled meanwhile."""
    loop, cancelled = asyncio.get_running_loop(), False
    deadline = loop.time() + grace
    task.cancel()
    while not task.done() and (rest := deadline - loop.time()) > 0:
        try:
            await asyncio.wait([task], timeout=rest)
        except asyncio.CancelledError:  # it must not shorten the time in which an agent ends its programs
            cancelled = True
    if not task.done():
        _left.add(task)
        task.add_done_callback(_left.discard)
    run.abandoned = not task.done() or run.has_threads
    return cancelled
