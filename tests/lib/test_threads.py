"""Blocking code next to an event loop."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
from contextvars import ContextVar

import pytest

from pytest_agentbench.lib import threads
from pytest_agentbench.lib.threads import daemon, in_thread, is_async, no_threads, off_the_loop, run_apart

colour: ContextVar[str] = ContextVar("colour", default="none")


async def test_what_a_function_returns() -> None:
    """The result is returned from a thread with the caller's context. An awaitable result is awaited in the loop."""

    def look(size: int, *, unit: str) -> tuple[str, bool]:
        return f"{size} {unit} {colour.get()}", threading.current_thread().daemon

    colour.set("red")

    assert ("3 m red", True) == await in_thread(look, 3, unit="m")
    assert "slept" == await in_thread(asyncio.sleep, 0, "slept")


@pytest.mark.parametrize("error", [KeyError("lamp"), SystemExit(3), TimeoutError("its own"), asyncio.CancelledError("its own")])
async def test_what_a_function_raises(error: BaseException) -> None:
    """Every error is raised unchanged, also one that would end a process."""

    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        await in_thread(fail)

    assert error is caught.value


async def test_an_error_that_no_coroutine_may_raise() -> None:
    """StopIteration, which a coroutine cannot raise, does not lead to an endless wait."""
    with pytest.raises(RuntimeError, match="StopIteration"):
        await in_thread(next, iter(()))


async def test_a_cancelled_wait() -> None:
    """A cancellation ends the wait at once. The thread continues."""
    go_on, gone_on = threading.Event(), threading.Event()

    def block() -> None:
        go_on.wait(30)
        gone_on.set()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await in_thread(block)
    go_on.set()

    assert gone_on.wait(30)


async def test_without_threads() -> None:
    """With `no_threads`, a function runs in the calling thread, for debuggers."""
    with no_threads():
        assert threading.current_thread() is await in_thread(threading.current_thread)
    assert threading.current_thread() is not await in_thread(threading.current_thread)


def test_a_thread_that_never_ends() -> None:
    """A process can end although one of its threads still runs."""
    code = """
import asyncio, threading
from pytest_agentbench.lib.threads import in_thread
async def main():
    async with asyncio.timeout(0.01):
        await in_thread(threading.Event().wait)
try:
    asyncio.run(main())
except TimeoutError:
    print("over")
"""
    assert "over\n" == subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30).stdout


async def test_off_the_loop() -> None:
    """A wrapped function is a coroutine function with the name and the parameters of the original."""

    def shade(lamp: str, *, size: int = 3) -> str:
        return f"{lamp} {size}"

    wrapped = off_the_loop(shade)

    assert (False, True, "shade") == (is_async(shade), is_async(wrapped), wrapped.__name__)
    assert inspect.signature(shade) == inspect.signature(wrapped)
    assert "brass 4" == await wrapped("brass", size=4)


def test_a_thread_that_dies_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """If memory runs out before a new thread's first line, the caller gets an error instead of waiting for ever."""
    begin = "_start_joinable_thread" if sys.version_info >= (3, 13) else "_start_new_thread"
    monkeypatch.setattr(threading, begin, lambda *_, **__: None)
    monkeypatch.setattr(threads, "START_SECONDS", 0.01)

    with pytest.raises(RuntimeError, match=r"can't start new thread: it did not begin within 0\.01 s"):
        daemon(print, name="lost")


def test_a_coroutine_apart() -> None:
    """The result or the error of a coroutine in another thread is passed to the caller."""

    async def work(error: BaseException | None) -> threading.Thread:
        if error is not None:
            raise error
        return threading.current_thread()

    with pytest.raises(SystemExit, match="3"):
        run_apart(lambda: work(SystemExit(3)))
    assert threading.current_thread() is not run_apart(lambda: work(None))


def test_ctrl_c_on_a_coroutine_apart() -> None:
    """Ctrl-C cancels the coroutine and waits for its clean-up, but not for a task that it leaves behind."""
    code = """
import asyncio, os, signal
from pytest_agentbench.lib.threads import run_apart
async def endless():
    while True:
        try:
            await asyncio.sleep(60)
        except BaseException:
            pass
async def main():
    left = asyncio.create_task(endless())
    os.kill(os.getpid(), signal.SIGINT)
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.1)
        print("cleaned", flush=True)
try:
    run_apart(main)
except KeyboardInterrupt:
    print("interrupted")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert (0, "cleaned\ninterrupted\n", "") == (ended.returncode, ended.stdout, ended.stderr)
