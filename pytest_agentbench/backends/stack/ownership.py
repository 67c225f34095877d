"""The mark that every process and container of a stack carries, by which leftovers are found and nothing else is touched."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pytest_agentbench.lib import file_lock, process

#: Environment variable of every process of a stack: the stack's folder.
VARIABLE = "AGENTBENCH_STACK"

#: Label of every container, network and volume of a stack: the same folder.
LABEL = "pytest-agentbench.stack"

LOCK = "lock"  # in a stack's folder; its guardian holds it as long as it lives

GONE = 10.0  # seconds that killed processes get to be gone


def marked(home: str) -> dict[str, str]:
    return {VARIABLE: home}


def lock(home: Path) -> int:
    """Takes the lock of a new stack; its descriptor, which the guardian inherits, so that the stack is never without an owner."""
    file = os.open(home / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    file_lock.lock(file, wait=True)
    return file


def is_alive(home: str) -> bool:
    """Whether a stack has a guardian; the one who asks must not be it."""
    try:
        with Path(home, LOCK).open("rb") as file:
            return not file_lock.lock(file, shared=True)
    except OSError:
        return False  # its folder is gone


def processes(home: str | None = None) -> Iterator[tuple[int, str]]:
    """(pid, stack's folder) of every living process of this user with a mark; only those of `home` when it is given.

    None where there is no /proc, as on macOS: there the end of a process group is all that is known of it.
    """
    return ((pid, of) for pid, of in process.with_variable(VARIABLE) if of == (home or of))


def is_marked(pid: int, home: str) -> bool:
    """Whether a process belongs to a stack."""
    return process.variable_of(pid, VARIABLE) == home


def kill_marked(home: str) -> list[int]:
    """SIGKILL to every process of a stack; returns their pids, once they are gone. What they start meanwhile is killed as well."""
    killed: list[int] = []
    while pids := [pid for pid, _ in processes(home) if pid not in killed]:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed += pids
    end = time.monotonic() + GONE
    while any(processes(home)) and time.monotonic() < end:
        time.sleep(0.01)
    return killed
