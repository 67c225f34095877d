"""Code that blocks, beside an event loop: each call has a thread of its own, which holds up nobody and outlives nobody."""

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

START_SECONDS = 30.0  # a thread that has not begun by then never will

_inline: ContextVar[bool] = ContextVar("agentbench_inline", default=False)


class _Started(threading.Event):
    """What `Thread.start` waits for, which would be for ever where memory ends before the new thread's first line."""

    def wait(self, timeout: float | None = None) -> bool:
        if not super().wait(START_SECONDS if timeout is None else timeout):
            raise RuntimeError(f"can't start new thread: it has not begun after {START_SECONDS:g} s, as when memory is short")
        return True


def daemon(target: Callable[..., object], *arguments: object, name: str) -> threading.Thread:
    """Runs a function in a thread that does not keep the process.

    Raises RuntimeError where it cannot start, or dies before its first line.
    """
    thread = threading.Thread(target=target, args=arguments, name=f"agentbench-{name}", daemon=True)
    thread._started = _Started()  # type: ignore[attr-defined]  # the one wait of the library that nothing bounds
    thread.start()
    return thread


@contextmanager
def no_threads() -> Iterator[None]:
    """Code that blocks runs where it is called, so that a debugger finds it in the caller's stack."""
    token = _inline.set(True)
    try:
        yield
    finally:
        _inline.reset(token)


def is_async(function: Callable[..., object]) -> bool:
    """Whether a function, or an object that is called, is a coroutine function."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - its own one


async def in_thread(function: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> Any:
    """What a function returns, or raises; an awaitable that it returns is awaited here.

    The thread is a daemon: one that never ends does not keep the process. A cancellation ends the wait, not the thread.
    """
    if _inline.get():
        result = function(*args, **kwargs)
    else:
        result = await _call_in_thread(functools.partial(function, *args, **kwargs))
    return await result if inspect.isawaitable(result) else result


async def _call_in_thread(function: Callable[[], T]) -> T:
    import asyncio  # here: a worker, which has no loop, does not load it

    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:  # it belongs to whoever waits, SystemExit too
            errors.append(error)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(ended.set)

    context = contextvars.copy_context()  # what it prints goes into its own rollout's log
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
    """A coroutine function of the loop that runs here, as one that blocks: for code in other threads."""
    import asyncio

    loop, loop_thread = asyncio.get_running_loop(), threading.get_ident()

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if threading.get_ident() != loop_thread:
            return asyncio.run_coroutine_threadsafe(function(*args, **kwargs), loop).result()
        with ThreadPoolExecutor(1) as threads:  # of `no_threads`: this loop waits, so the coroutine has one of its own
            return threads.submit(contextvars.copy_context().run, asyncio.run, function(*args, **kwargs)).result()

    return run


def off_the_loop(function: Callable[P, Any]) -> Callable[P, Coroutine[Any, Any, Any]]:
    """The function as one that is awaited, wherever it is blocking or not."""

    @functools.wraps(function)
    async def run(*args: P.args, **kwargs: P.kwargs) -> Any:
        return await in_thread(function, *args, **kwargs)

    return run


def run_apart(work: Callable[[], Awaitable[T]]) -> T:
    """Runs a coroutine function in the event loop of another thread. Returns its result, and does not wait for code that it left running.

    A KeyboardInterrupt cancels the coroutine, and is raised when that has ended.
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
        daemon(asyncio.run, main(), name="apart")  # Starting a thread waits too, so Ctrl-C may come here.
        finished.wait()
    except KeyboardInterrupt:
        interrupted.set()
        for loop, task in running:
            loop.call_soon_threadsafe(task.cancel)
        finished.wait()
        raise
    (end,) = ends
    return end.result()
