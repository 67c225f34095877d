"""Processes that user code left running."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from pytest_agentbench.lib.process import SESSION, end_marked, lives

#: A process that prints a line as soon as it ignores SIGTERM.
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(300)"
OBEDIENT = "import time; print(flush=True); time.sleep(300)"


@contextmanager
def running(code: str, mark: str | None) -> Iterator[subprocess.Popen[str]]:
    """Starts a process in its own session, with or without the mark."""
    variables = {name: value for name, value in os.environ.items() if name != SESSION} | ({SESSION: mark} if mark else {})
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("grace", [0.1, 0])
def test_only_marked_processes_are_ended(grace: float) -> None:
    """Processes with the mark are ended and counted, also if they ignore SIGTERM. Others survive, and so does the calling process."""
    mine, other = secrets.token_hex(16), secrets.token_hex(16)
    cases = {"obedient": (OBEDIENT, mine), "stubborn": (STUBBORN, mine), "of another": (OBEDIENT, other), "unmarked": (OBEDIENT, None)}
    with ExitStack() as stack:
        processes = {name: stack.enter_context(running(*case)) for name, case in cases.items()}
        count = end_marked(SESSION, mine, settle=0, grace=grace)
        alive = [name for name, process in processes.items() if lives(process.pid)]

    assert 2 == count
    assert ["of another", "unmarked"] == alive


def test_a_process_that_ends_by_itself_is_not_counted() -> None:
    """A process that ends while the others settle gets no signal."""
    mark = secrets.token_hex(16)
    with running("print(flush=True)", mark) as process:
        count = end_marked(SESSION, mark, settle=30)

    assert (0, 0) == (count, process.returncode)
