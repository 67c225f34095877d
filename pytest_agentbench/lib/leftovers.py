"""Processes that user code left running, found by a variable in the environment that they were started with."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from pytest_agentbench.lib.process import variable_of, with_variable

#: Variable of the pool, and so of all processes that agents and scorers start. Its value identifies the session.
SESSION = "AGENTBENCH_SESSION"

#: Variable of all processes that a rollout with `isolation: process` starts. Its value identifies the rollout's process.
ROLLOUT = "AGENTBENCH_ROLLOUT"

SETTLE = 0.5  # seconds in which processes that end with their parent may end by themselves
GRACE = 1.0  # seconds between SIGTERM and SIGKILL
_STEP = 0.02  # seconds between two looks at the process table
_ROUNDS = 100  # SIGKILLs of processes that start others meanwhile


def end_marked(variable: str, value: str, *, settle: float = SETTLE, grace: float = GRACE) -> int:
    """Ends all other processes of this user that were started with `variable` set to `value`. Returns how many got a signal.

    Each gets SIGTERM, and SIGKILL if it still runs after `grace` seconds. With `grace=0` it gets SIGKILL at once. A process that ends by
    itself within `settle` seconds gets no signal and is not counted. A process that cleared its environment is not found, and
    none is found on a system without /proc.
    """
    if not _remain(variable, value, settle):
        return 0
    signalled: set[int] = set()
    if grace:
        signalled |= _signal(variable, value, signal.SIGTERM)
        _remain(variable, value, grace)
    for _ in range(_ROUNDS):
        if not (killed := _signal(variable, value, signal.SIGKILL)):
            break
        signalled |= killed
        time.sleep(_STEP)
    return len(signalled)


def _pids(variable: str, value: str) -> list[int]:
    return [pid for pid, its in with_variable(variable) if its == value]


def _remain(variable: str, value: str, seconds: float) -> bool:
    """Waits until no process has the mark, for at most `seconds`. Returns whether one still has it."""
    deadline = time.monotonic() + seconds
    while _pids(variable, value):
        if time.monotonic() >= deadline:
            return True
        time.sleep(_STEP)
    return False


def _signal(variable: str, value: str, number: signal.Signals) -> set[int]:
    """Sends a signal to all processes with the mark. Returns their ids."""
    reached = set()
    for pid in _pids(variable, value):
        with suppress(OSError):  # it ended
            handle = os.pidfd_open(pid)
            try:
                if variable_of(pid, variable) == value:  # The id may have become another process's before the handle was opened.
                    signal.pidfd_send_signal(handle, number)
                    reached.add(pid)
            finally:
                os.close(handle)
    return reached
