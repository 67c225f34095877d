"""Runs pytest sessions for a command, one after the other, and handles SIGTERM while they run."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

TERMINATED = 128 + signal.SIGTERM  # exit status that a shell gives to a program ended by SIGTERM


@contextmanager
def tidy_termination() -> Iterator[None]:
    """Makes SIGTERM raise SystemExit inside the `with` block, so that its processes and temporary files are cleaned up."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


QUIET = ("-q", "--tb=no", "-rN")  # hides failed tests, because the command is about the measurements


class SessionOutcome(NamedTuple):
    """The result of a pytest session that a command has run."""

    status: int  # exit status
    directory: Path | None  # run directory; None if the session made none


def run_session(words: Sequence[str], reports: Path, output: Path | None = None) -> SessionOutcome:
    """Runs pytest with these arguments and waits for its end. Returns the exit status and the run directory.

    Its output goes to the file `output` if there is one, and otherwise to the terminal.
    """
    latest = reports / "latest"
    before = latest.resolve()
    sys.stdout.flush()
    command = [sys.executable, "-m", "pytest", *words, f"--agentbench-reports={reports.resolve()}"]
    if output is None:
        status = _wait(command)
    else:
        with output.open("wb") as file:
            status = _wait(command, file)
    return SessionOutcome(status, latest.resolve() if latest.exists() and latest.resolve() != before else None)


def _wait(command: Sequence[str], output: IO[bytes] | None = None) -> int:
    """Runs a pytest command and returns its exit status. After Ctrl-C or SIGTERM, waits until pytest has written its results so far."""
    session = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT if output else None)
    try:
        with tidy_termination():
            return session.wait()
    except KeyboardInterrupt:  # the terminal sends the signal to pytest, too
        session.wait()
        raise
    except SystemExit:
        session.send_signal(signal.SIGINT)
        session.wait()
        raise
