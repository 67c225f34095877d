"""Runs user code with a time limit, which also works for code that ignores cancellation."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pytest_agentbench.lib.abandoned import BoundedRun, current_run

T = TypeVar("T")

GRACE = 5.0  # seconds in which cancelled code has to end

TASK_LEFT = "; its code did not end when it was cancelled, and was left running"
THREAD_LEFT = "; its code runs in a thread, which cannot be cancelled, and was left running"


@dataclass(frozen=True)
class End(Generic[T]):
    """The outcome of an execution of user code: its return value, its exception, or that it was left running.

    Exceptions are stored instead of raised, so that SystemExit and KeyboardInterrupt do not end the event loop.
    """

    value: T | None = None
    error: BaseException | None = None  # exception of the code; None also if the code was left running
    expired: bool = False  # whether the time limit was reached first
    left: str = ""  # clause for the failure reason, if some of the code still runs

    @property
    def took_too_long(self) -> bool:
        """Whether the code failed because of the time limit. False if it returned a result when it was cancelled."""
        return self.expired and (self.left == TASK_LEFT or isinstance(self.error, asyncio.CancelledError | TimeoutError))

    def result(self) -> T:
        """Returns the value that the code returned, or raises the exception that it raised."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # Code that ended without an error has a value.


#: Tasks that were left running. The event loop has only weak references to tasks.
_left: set[asyncio.Task[Any]] = set()


async def run_bounded(work: Callable[[], Awaitable[T]], seconds: float | None, *, grace: float = GRACE) -> End[T]:
    """Runs user code in its own task and returns how it ended, at most `grace` seconds after the time limit.

    The code is cancelled after `seconds` (None: no limit), or when the caller is cancelled. If it still runs `grace` seconds later, it
    is left running and marked as abandoned (`lib.abandoned`).

    Raises:
        asyncio.CancelledError: The caller was cancelled. If the code cancels itself, the `End` has that error instead.
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
    """Runs a coroutine function in the current task, without a time limit, and returns how it ended."""
    try:
        return End(await work())
    except BaseException as error:
        return End(error=error)


def _result(task: asyncio.Task[End[T]]) -> End[T]:
    """Returns the `End` of a finished task. A task that was cancelled before its first step has no `End` of its own."""
    return End(error=asyncio.CancelledError()) if task.cancelled() else task.result()


async def _stop(task: asyncio.Task[Any], run: BoundedRun, grace: float) -> bool:
    """Cancels a task and waits at most `grace` seconds for its end. Returns whether the caller was cancelled meanwhile."""
    loop, cancelled = asyncio.get_running_loop(), False
    deadline = loop.time() + grace
    task.cancel()
    while not task.done() and (rest := deadline - loop.time()) > 0:
        try:
            await asyncio.wait([task], timeout=rest)
        except asyncio.CancelledError:  # Keep waiting: an agent needs the whole grace period to end its programs.
            cancelled = True
    if not task.done():
        _left.add(task)
        task.add_done_callback(_left.discard)
    run.abandoned = not task.done() or run.has_threads
    return cancelled
