"""Runs blocking code next to an event loop. Each call has its own daemon thread, which blocks neither other calls nor the exit."""

from __future__ import annotations

import contextvars
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from pytest_agentbench.lib.abandoned import current_run

if TYPE_CHECKING:
    import asyncio

    from pytest_agentbench.lib.bounded import End

P = ParamSpec("P")
T = TypeVar("T")

START_SECONDS = 30.0  # seconds after which a thread that has not started is considered dead

_inline: ContextVar[bool] = ContextVar("agentbench_inline", default=False)


class _Started(threading.Event):
    """Replaces the event for which `Thread.start` waits, to add a time limit. If memory runs out in the new thread, it is never set."""

    def wait(self, timeout: float | None = None) -> bool:
        if not super().wait(START_SECONDS if timeout is None else timeout):
            raise RuntimeError(f"can't start new thread: it did not begin within {START_SECONDS:g} s, probably because memory is short")
        return True


def daemon(target: Callable[..., object], *arguments: object, name: str) -> threading.Thread:
    """Starts a function in a daemon thread.

    Raises RuntimeError if the thread cannot start, or dies before its first line.
    """
    thread = threading.Thread(target=target, args=arguments, name=f"agentbench-{name}", daemon=True)
    thread._started = _Started()  # type: ignore[attr-defined]  # `Thread.start` waits for this event without a limit.
    thread.start()
    return thread


@contextmanager
def no_threads() -> Iterator[None]:
    """Makes `in_thread` run functions directly, so that a debugger shows them in the caller's stack."""
    token = _inline.set(True)
    try:
        yield
    finally:
        _inline.reset(token)


def is_async(function: Callable[..., object]) -> bool:
    """Returns whether a function or callable object is a coroutine function."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - its method


async def in_thread(function: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> Any:
    """Runs a function in a new thread and returns its result. If the result is awaitable, awaits it in the event loop.

    Cancellation ends the wait but not the thread. The thread is a daemon, so it does not keep the process from ending.
    """
    if _inline.get():
        result = function(*args, **kwargs)
    else:
        result = await _call_in_thread(functools.partial(function, *args, **kwargs))
    return await result if inspect.isawaitable(result) else result


async def _call_in_thread(function: Callable[[], T]) -> T:
    import asyncio  # Imported here because workers have no event loop and need not load it.

    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:  # The caller gets any exception, including SystemExit.
            errors.append(error)
        with suppress(RuntimeError):  # The loop is closed, so no task waits any more.
            loop.call_soon_threadsafe(ended.set)

    context = contextvars.copy_context()  # Prints of the thread belong to the rollout's log.
    thread = daemon(context.run, run, name="blocking")
    if (limited := current_run.get()) is not None:
        limited.threads.add(thread)
    await ended.wait()
    if limited is not None:
        limited.threads.discard(thread)
    if errors:
        raise errors[0]
    return results[0]


def blocking(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Converts a coroutine function of the running event loop to a blocking function for other threads."""
    import asyncio

    loop, loop_thread = asyncio.get_running_loop(), threading.get_ident()

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if threading.get_ident() != loop_thread:
            return asyncio.run_coroutine_threadsafe(function(*args, **kwargs), loop).result()
        with ThreadPoolExecutor(1) as threads:  # Under `no_threads` this loop is blocked, so the coroutine gets its own loop.
            return threads.submit(contextvars.copy_context().run, asyncio.run, function(*args, **kwargs)).result()

    return run


def off_the_loop(function: Callable[P, Any]) -> Callable[P, Coroutine[Any, Any, Any]]:
    """Converts any function, also one that blocks, to a coroutine function that runs it in a thread with `in_thread`."""

    @functools.wraps(function)
    async def run(*args: P.args, **kwargs: P.kwargs) -> Any:
        return await in_thread(function, *args, **kwargs)

    return run


def run_apart(work: Callable[[], Awaitable[T]]) -> T:
    """Runs a coroutine function in an event loop in another thread and returns its result. Does not wait for code that was left running.

    A KeyboardInterrupt cancels the coroutine, and is raised when the coroutine has ended.
    """
    import asyncio

    from pytest_agentbench.lib.bounded import end_of

    finished, interrupted = threading.Event(), threading.Event()
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []
    ends: list[End[T]] = []

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        running.append((asyncio.get_running_loop(), task))
        if interrupted.is_set():
            task.cancel()
        ends.append(await end_of(work))
        finished.set()

    try:
        daemon(asyncio.run, main(), name="apart")  # Starting a thread waits, too, so Ctrl-C may arrive here.
        finished.wait()
    except KeyboardInterrupt:
        interrupted.set()
        for loop, task in running:
            loop.call_soon_threadsafe(task.cancel)
        finished.wait()
        raise
    (end,) = ends
    return end.result()
