"""What an agent logs and prints goes into its own rollout's record, however many rollouts share the process."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TextIO

LOG_LIMIT = 64 * 1024  # characters of one rollout's log that are kept
FORMAT = "%(levelname)s %(name)s: %(message)s"  # of what is logged

_current: ContextVar[io.StringIO | None] = ContextVar("agentbench_log", default=None)


@contextmanager
def capture() -> Iterator[io.StringIO]:
    """Collects what this task, and the tasks it starts, log and print."""
    log = io.StringIO()
    token = _current.set(log)
    try:
        yield log
    finally:
        _current.reset(token)


def clipped(text: str, limit: int = LOG_LIMIT) -> str:
    """The end of a long text; a mark says how much is gone."""
    return text if len(text) <= limit else f"[{len(text) - limit} characters left out]\n{text[-limit:]}"


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if (log := _current.get()) is None:
            return
        try:
            log.write(self.format(record) + "\n")
        except Exception:  # a message that does not fit its arguments is no fault of the agent's run
            self.handleError(record)


class _Stream(io.TextIOBase):
    """Sends a write to the current rollout's log, or on to the stream it stands before."""

    def __init__(self, behind: TextIO) -> None:
        self.behind = behind

    def write(self, text: str) -> int:
        log = _current.get()
        return log.write(text) if log is not None else self.behind.write(text)

    def flush(self) -> None:
        self.behind.flush()


def install() -> None:
    """Makes this process capture: root logger from INFO up, stdout and stderr. For processes that are ours alone."""
    handler = _Handler()
    handler.setFormatter(logging.Formatter(FORMAT))
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.INFO)
    sys.stdout, sys.stderr = _Stream(sys.stdout), _Stream(sys.stderr)
