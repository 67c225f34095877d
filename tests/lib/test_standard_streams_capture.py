"""Logs and prints of rollouts are captured separately."""

from __future__ import annotations

import asyncio
import io
import logging
import sys
import tracemalloc
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress

import pytest

from pytest_agentbench.lib import standard_streams


@contextmanager
def installed(level: str = "info") -> Iterator[io.StringIO]:
    """Captures in this process as the pool does, instead of pytest. Returns the output that belongs to no rollout."""
    outside, root = io.StringIO(), logging.getLogger()
    handlers, before = [*root.handlers], root.level
    root.handlers.clear()
    try:
        with redirect_stdout(outside), redirect_stderr(outside):
            standard_streams.install(level)
            yield outside
    finally:
        root.handlers[:] = handlers
        root.setLevel(before)


def fails_in_a_package() -> None:
    try:
        logging.getLogger("x").setLevel("loud")
    except ValueError as error:
        raise KeyError("colour") from error


def test_frames_before_the_users() -> None:
    """A traceback in a log begins with the first frame in a file of the user, in each exception of a chain."""
    errors: list[Exception] = []
    with installed(), standard_streams.capture() as log:
        try:
            with futures.ThreadPoolExecutor(1) as pool:
                pool.submit(fails_in_a_package).result()
        except KeyError as error:
            errors.append(error.with_traceback(error.__traceback__.tb_next if error.__traceback__ else None))
        standard_streams.print_exception(errors[0])

    files = [line.split('"')[1].rpartition("/")[2] for line in log.text.splitlines() if line.startswith("  File")]
    assert ["test_standard_streams_capture.py", "__init__.py", "__init__.py", "test_standard_streams_capture.py"] == files


@pytest.mark.parametrize(("level", "lines"), [("info", []), ("debug", ["INFO httpx: HTTP Request"])])
def test_the_http_client(level: str, lines: list[str]) -> None:
    """The HTTP client of the openai SDK logs each request at INFO. A rollout's log leaves these lines out, except at the level debug."""
    logger = logging.getLogger("httpx")
    before = logger.level
    try:
        logger.setLevel(logging.NOTSET)
        with installed(level), standard_streams.capture() as log:
            logger.info("HTTP Request")
    finally:
        logger.setLevel(before)

    assert lines == log.text.splitlines()


async def talk(name: str, meet: asyncio.Barrier) -> str:
    """Logs and prints in step with other rollouts, also in its own tasks and threads. Returns the captured output."""

    async def aside() -> None:
        print(f"{name} in a task")

    with standard_streams.capture() as log:
        task = asyncio.create_task(aside())
        for step in range(3):
            await meet.wait()
            print(f"{name} out {step}")
            print(f"{name} err {step}", file=sys.stderr)
            logging.getLogger("shop").info("%s log %d", name, step)
        await asyncio.to_thread(print, f"{name} in a thread")
        await task
    print(f"{name} is done")
    return log.text


async def test_tasks_do_not_mix() -> None:
    """Each of several concurrent rollouts gets only its own output. Later output goes to the original stream."""
    meet = asyncio.Barrier(2)

    with installed() as outside:
        logs = await asyncio.gather(talk("ann", meet), talk("ben", meet))

    for name, log in zip(("ann", "ben"), logs, strict=True):
        told = [f"{name} {way} {step}" for step in range(3) for way in ("out", "err")]
        told += [f"INFO shop: {name} log {step}" for step in range(3)]
        assert sorted([*told, f"{name} in a task", f"{name} in a thread"]) == sorted(log.splitlines())
    assert ["ann is done", "ben is done"] == sorted(outside.getvalue().splitlines())


def test_levels() -> None:
    """Messages of level INFO and above are kept, with level and logger. DEBUG messages are not."""
    with installed() as outside, standard_streams.capture() as log:
        logging.getLogger("shop.debug").debug("small talk")
        logging.getLogger("shop.cart").warning("no %s left", "lamps")
        logging.getLogger("shop").info("done")

    assert "WARNING shop.cart: no lamps left\nINFO shop: done\n" == log.text
    assert "" == outside.getvalue()


def test_a_message_that_does_not_fit() -> None:
    """A log call with wrong arguments does not fail the agent. The error is in its log."""
    with installed() as outside, standard_streams.capture() as log:
        logging.getLogger("shop").warning("%d lamps", "no")

    assert "--- Logging error ---" in log.text
    assert "TypeError: %d format" in log.text
    assert "" == outside.getvalue()


def test_captures_nest() -> None:
    """The innermost capture gets the output until it ends, also by an exception."""
    with installed() as outside:
        with standard_streams.capture() as outer:
            with suppress(ValueError), standard_streams.capture() as inner:
                print("inside")
                raise ValueError
            print("around")
        print("outside")
        logging.getLogger("shop").warning("to nobody")

    assert ("inside\n", "around\n", "outside\n") == (inner.text, outer.text, outside.getvalue())


def test_a_long_log() -> None:
    """The beginning and end are kept, with a line between them that says how much is left out. A short log stays unchanged."""
    log = standard_streams.Log(limit=8)
    for text, whole in (("abcd", "abcd"), ("ef", "abcdef"), ("gh", "abcdefgh"), ("i", "abcd\n[1 characters left out]\nfghi")):
        assert len(text) == log.write(text)

        assert whole == log.text
    log.write("x" * 2000)

    assert "abcd\n[2,001 characters left out]\nxxxx" == log.text


@pytest.mark.parametrize("length", [1, 100, 100_000])
def test_a_log_without_an_end(length: int) -> None:
    """The memory is limited to the size of the kept text and one piece, whatever the size of the pieces."""
    log = standard_streams.Log(limit=1000)
    tracemalloc.start()
    for _ in range(100_000 if length == 1 else 1000):
        log.write("x" * length)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 30_000 + 4 * length
    assert len(log.text) < 1050
