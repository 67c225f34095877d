"""pytest sessions that a command runs, one after the other, and SIGTERM to a command that has started processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

TERMINATED = 128 + signal.SIGTERM  # as a shell has it for a program that SIGTERM ends


@contextmanager
def tidy_termination() -> Iterator[None]:
    """SIGTERM ends the block as an exception does, so that what it has started and written does not outlive it."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


QUIET = ("-q", "--tb=no", "-rN")  # of tests that fail: what was measured is what the command is about


class SessionOutcome(NamedTuple):
    """How a session went."""

    status: int  # exit status
    directory: Path | None  # of its run; None where it made none


def run_session(words: Sequence[str], reports: Path) -> SessionOutcome:
    """Runs pytest with these words to its end."""
    latest = reports / "latest"
    before = latest.resolve()
    sys.stdout.flush()
    status = _wait([sys.executable, "-m", "pytest", *words, f"--agentbench-reports={reports.resolve()}"])
    return SessionOutcome(status, latest.resolve() if latest.exists() and latest.resolve() != before else None)


def _wait(command: Sequence[str]) -> int:
    """Runs pytest, with the user's own arguments, to its end. Whoever interrupts this interrupts pytest, which still writes what it has."""
    session = subprocess.Popen(command)
    try:
        with tidy_termination():
            return session.wait()
    except KeyboardInterrupt:  # the terminal has told pytest as well
        session.wait()
        raise
    except SystemExit:
        session.send_signal(signal.SIGINT)
        session.wait()
        raise
