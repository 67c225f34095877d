"""Supervisors: processes that run one program each, and end it with all processes that it started. Functions for all kinds of them.

This package uses only the standard library, without site-packages, so that supervisors start fast.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

SET_PDEATHSIG, SET_CHILD_SUBREAPER = 1, 36  # options of prctl(2)

_ROOT = str(Path(__file__).parents[3])  # the folder that the package is in


def supervisor_command(module: str, *arguments: str) -> list[str]:
    """Returns the command line that runs `main` of a supervisor module, given by its dotted name."""
    code = f"import sys; sys.path.append({_ROOT!r}); from {module} import main; main()"
    return [sys.executable, "-I", "-S", "-c", code, *arguments]


def start_program(
    run: Sequence[str],
    cwd: str,
    env: Mapping[str, str],
    *,
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
) -> subprocess.Popen[bytes]:
    """Starts a program in its own process session. It is killed when this process dies. Raises OSError if it cannot be started.

    On Linux, processes that the program leaves behind become children of this process, so they cannot escape.
    """
    set_process = _prctl()
    set_process(SET_CHILD_SUBREAPER, 1)
    return subprocess.Popen(
        run,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=cwd,
        env=env,
        start_new_session=True,
        preexec_fn=lambda: set_process(SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509 - one thread
    )


def signal_group(leader: int, number: int) -> None:
    """Sends a signal to the process group of a leader."""
    with suppress(ProcessLookupError, PermissionError):  # No process of the group is left that can be signalled.
        os.killpg(leader, number)


def end_orphans() -> None:
    """Kills all children of this process, also those in other sessions, and waits for them."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while numbers := children.read_text().split() if children.exists() else []:
        for number in numbers:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(int(number), signal.SIGKILL)
        for number in numbers:
            with suppress(ChildProcessError):
                os.waitpid(int(number), 0)


def _prctl() -> Callable[[int, int], int]:
    """Returns a function that sets an attribute of this process. It does nothing on other systems than Linux."""
    if sys.platform != "linux":
        return lambda *_: 0
    call: Callable[[int, int], int] = ctypes.CDLL(None).prctl
    return call
