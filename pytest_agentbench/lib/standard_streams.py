"""The standard streams of processes that run code of a suite: captured log messages and prints, and refused input.

Log messages and prints of each rollout are captured separately, although many rollouts share a process. Debuggers and reads of stdin are
refused in a process without a terminal, where they would wait for input without an end.
"""

from __future__ import annotations

import io
import logging
import os
import pdb  # noqa: T100 - it is switched off here
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NoReturn, TextIO

from pytest_agentbench.errors import NoTerminal
from pytest_agentbench.lib.cut_marks import mark
from pytest_agentbench.lib.error_texts import is_users_file, user_place
from pytest_agentbench.lib.foreign import cut

LOG_LIMIT = 64 * 1024  # characters kept of a rollout's log: half from its beginning, half from its end
FORMAT = "%(levelname)s %(name)s: %(message)s"  # format of log messages


class Log:
    """The log of one rollout. Keeps the beginning and the end of the text written to it, in bounded memory. Safe to use from threads."""

    def __init__(self, limit: int = LOG_LIMIT) -> None:
        """`limit` is the number of characters to keep."""
        self._half = limit // 2
        self._head, self._tail = io.StringIO(), io.StringIO()
        self._written = 0  # characters
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        with self._lock:
            room = self._half - self._head.tell()
            self._head.write(text[:room])
            self._tail.write(text[max(room, len(text) - self._half) :])
            if self._tail.tell() > 2 * self._half:
                self._shorten()
            self._written += len(text)
        return len(text)

    def _shorten(self) -> None:
        end = self._tail.getvalue()[-self._half :]
        self._tail = io.StringIO()
        self._tail.write(end)

    @property
    def text(self) -> str:
        """The kept text. If some was left out, a line in the middle says how much."""
        with self._lock:
            head, tail = self._head.getvalue(), self._tail.getvalue()[-self._half :]
            left_out = self._written - len(head) - len(tail)
        return f"{head}\n{mark(left_out, 'characters')}\n{tail}" if left_out else head + tail


_current: ContextVar[Log | None] = ContextVar("agentbench_log", default=None)


@contextmanager
def capture() -> Iterator[Log]:
    """Collects log messages and prints in a `Log` for the `with` block, from the current task and the tasks that it starts."""
    log = Log()
    token = _current.set(log)
    try:
        yield log
    finally:
        _current.reset(token)


def print_exception(error: BaseException) -> None:
    """Prints the traceback of an exception to stderr, from the first frame in the user's code.

    A message that is longer than the log of a rollout is truncated, because printing copies it.
    """
    text = str(error)
    if (shortened := cut(text, LOG_LIMIT)) is text:
        sys.stderr.write("".join(_users_part(traceback.TracebackException.from_exception(error)).format()))
        return
    traceback.print_tb(error.__traceback__)
    sys.stderr.write(f"{type(error).__name__}: {shortened}\n")


def _users_part(error: traceback.TracebackException) -> traceback.TracebackException:
    """Returns the exception, and those that it came from, without the frames before the first one in a file of the user."""
    inner: traceback.TracebackException | None = error
    while inner is not None:
        first = next((place for place, frame in enumerate(inner.stack) if is_users_file(frame.filename)), 0)
        inner.stack[:] = inner.stack[first:]
        inner = inner.__cause__ or inner.__context__
    return error


#: Loggers with a line about each request at INFO: those of the HTTP client of the openai SDK. The record of a rollout has its calls.
CHATTY = ("httpx", "httpx2")


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if (log := _current.get()) is None:
            return
        try:
            log.write(self.format(record) + "\n")
        except Exception:  # A log message with wrong arguments must not fail the rollout.
            self.handleError(record)


class _Stream(io.TextIOBase):
    """Replaces stdout or stderr. Writes to the log of the current rollout, or to the original stream outside of rollouts."""

    def __init__(self, original: TextIO) -> None:
        self._original = original

    def write(self, text: str) -> int:
        log = _current.get()
        return log.write(text) if log is not None else self._original.write(text)

    def flush(self) -> None:
        self._original.flush()


def install(level: str) -> None:
    """Redirects stdout, stderr and the root logger of this process to the logs of rollouts. `level` is the lowest one, such as `info`.

    Only for processes of this package, such as the pool (which runs rollouts), because it affects all code in the process.
    """
    handler = _Handler()
    handler.setFormatter(logging.Formatter(FORMAT))
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(level.upper())
    if level.lower() == "info":
        for name in CHATTY:
            logging.getLogger(name).setLevel(logging.WARNING)
    sys.stdout, sys.stderr = _Stream(sys.stdout), _Stream(sys.stderr)


STDIN = 0  # file descriptor

IN_A_ROLLOUT = "--agentbench-inline (which --pdb implies) runs agents, tools and scorers in pytest's own process"
AT_IMPORT = "move it into a function, because importing the code must only define things"


def refuse_input(advice: str) -> int:
    """Makes `breakpoint()`, `pdb.set_trace()` and all reads of stdin raise NoTerminal in this process.

    A debugger that PYTHONBREAKPOINT names still starts, because it may have a terminal or a port of its own. Programs that the process
    starts read an empty stdin.

    Args:
        advice: What the user can do instead. It ends the message of the error.

    Returns:
        A descriptor of what was stdin.
    """
    before = os.dup(STDIN)
    with open(os.devnull) as nothing:  # noqa: PTH123 - a device
        os.dup2(nothing.fileno(), STDIN)
    sys.stdin = _NoInput(advice)

    def refuse_breakpoint(*arguments: object, **options: object) -> object:
        if os.environ.get("PYTHONBREAKPOINT", "") not in ("", "pdb.set_trace"):
            return sys.__breakpointhook__(*arguments, **options)  # noqa: T100
        _refuse("breakpoint()", advice)

    def refuse_set_trace(*arguments: object, **options: object) -> NoReturn:
        del arguments, options
        _refuse("pdb.set_trace()", advice)

    sys.breakpointhook = refuse_breakpoint
    pdb.set_trace = refuse_set_trace
    return before


def _refuse(what: str, advice: str) -> NoReturn:
    raise NoTerminal(f"{what} needs a terminal, and this process has none; {advice}{user_place(sys._getframe())}")


class _NoInput(io.TextIOBase):
    """Replaces `sys.stdin`. Other debuggers, such as `pdb.Pdb().set_trace()`, read it as `input()` does."""

    def __init__(self, advice: str) -> None:
        self._advice = advice

    def read(self, size: int | None = -1, /) -> str:
        del size
        return self.readline()

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]  # the base class has another name for it
        del size
        _refuse("input() or another read of stdin", self._advice)

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return STDIN

    @property
    def buffer(self) -> NoReturn:
        _refuse("a read of stdin", self._advice)
