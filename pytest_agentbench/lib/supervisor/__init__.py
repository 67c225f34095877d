"""Processes that each run one program and end it with all that it started: what the kinds of them share.

The standard library alone, here and in the modules that are run, and no site-packages: they start at once.
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

SET_PDEATHSIG, SET_CHILD_SUBREAPER = 1, 36  # of prctl

_ROOT = str(Path(__file__).parents[3])  # the folder that the package is in


def supervisor_command(module: str, *arguments: str) -> list[str]:
    """The command line of the supervisor whose `main` is in a module, by its dotted name."""
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
    """Starts a program in a session of its own, which dies with this process; raises OSError when it cannot.

    What it starts and then leaves behind becomes this process's child, and cannot get away (Linux).
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
    """Sends a signal to a process with its group, of which it is the leader."""
    with suppress(ProcessLookupError, PermissionError):  # the group is empty, or only what has left it is
        os.killpg(leader, number)


def end_orphans() -> None:
    """Kills all children of this process, also what went into a session of its own, and waits for them."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while numbers := children.read_text().split() if children.exists() else []:
        for number in numbers:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(int(number), signal.SIGKILL)
        for number in numbers:
            with suppress(ChildProcessError):
                os.waitpid(int(number), 0)


def _prctl() -> Callable[[int, int], int]:
    """Sets one attribute of this process on Linux; does nothing elsewhere."""
    if sys.platform != "linux":
        return lambda *_: 0
    call: Callable[[int, int], int] = ctypes.CDLL(None).prctl
    return call
