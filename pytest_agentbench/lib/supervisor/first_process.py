"""The first process of a container. The kernel makes it the parent of all orphans, and only it gets the signals that end a container.

`python -m pytest_agentbench.lib.supervisor.first_process COMMAND...` runs a command below it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def run_below() -> int | None:
    """Forks. Returns None in the new process, which runs the program, and in this one the exit status of the program, once it has ended.

    Until then this process waits for each orphan that ends, so that none stays a zombie, and forwards signals to the program. It must have
    one thread.
    """
    awaited = {signal.SIGCHLD, *FORWARDED}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    program = os.fork()
    if not program:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return None
    while True:
        came = signal.sigwaitinfo(awaited)
        # A terminal sends its signals to the program as well; the code of such a signal is above 0.
        if came.si_signo != signal.SIGCHLD and came.si_code <= 0:
            os.kill(program, came.si_signo)
        for pid, status in _ended():
            if pid == program:
                code = os.waitstatus_to_exitcode(status)
                return 128 - code if code < 0 else code


def _ended() -> Iterator[tuple[int, int]]:
    """Yields the process id and the wait status of each child that has ended."""
    pid = -1
    while pid:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid:
            yield pid, status


def main(command: list[str]) -> int:
    """Runs a command below this process. Returns its exit status, which is 127 if it cannot be started, as in a shell."""
    if (status := run_below()) is not None:
        return status
    try:
        os.execvp(command[0], command)  # noqa: S606 - a shell would be between this process and the program
    except OSError as error:
        sys.stderr.write(f"agentbench: {command[0]}: {error.strerror}\n")
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
