"""The first process of a container, tried in a process that gets orphans as the first process does."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.waits import wait_for

#: Runs a command as the first process of a container does. Orphans become children of this process, whose id is not 1.
CODE = """
import sys
from pytest_agentbench.lib.supervisor import SET_CHILD_SUBREAPER, _prctl
from pytest_agentbench.lib.supervisor.first_process import main
_prctl()(SET_CHILD_SUBREAPER, 1)
sys.exit(main(sys.argv[1:]))
"""

#: Says when it waits for signals, and prints those that come, until SIGTERM comes.
PRINTS_SIGNALS = """
import signal
awaited = {signal.SIGINT, signal.SIGTERM, signal.SIGALRM}
signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
print("waits", flush=True)
while (came := signal.sigwait(awaited)) != signal.SIGTERM:
    print(signal.Signals(came).name, flush=True)
print("SIGTERM", flush=True)
raise SystemExit(5)
"""

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(sys.platform != "linux", reason="a process gets orphans of others on Linux only"),
]

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a command below a first process, in a session of its own."""
    started: list[subprocess.Popen[str]] = []

    def start(*command: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", CODE, *command]
        started.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True))
        return started[-1]

    yield start
    for each in started:
        if each.poll() is None:
            os.killpg(each.pid, signal.SIGKILL)
        each.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def children(pid: int) -> set[str]:
    return set(Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split())


def test_orphans(start: Start) -> None:
    """An orphan that ends is removed, while the program goes on."""
    # The shell in brackets ends at once, so that the program that it has started is an orphan.
    first = start("sh", "-c", "(sleep 60 & echo $!) && exec sleep 60")
    orphan = line(first)
    wait_for(lambda: orphan in children(first.pid), "the orphan")

    os.kill(int(orphan), signal.SIGKILL)

    wait_for(lambda: len(children(first.pid)) == 1, "the end of the orphan")
    assert first.poll() is None


@pytest.mark.parametrize(
    ("command", "status"), [(("sh", "-c", "exit 3"), 3), (("sh", "-c", "kill -9 $$"), 137), (("true",), 0), (("no-such-program",), 127)]
)
def test_status(start: Start, command: tuple[str, ...], status: int) -> None:
    """The exit status is that of the program, or 128 and the number of the signal that ended it."""
    first = start(*command)
    _, errors = first.communicate()

    assert status == first.returncode
    assert ("agentbench: no-such-program: No such file or directory\n" if status == 127 else "") == errors


def test_signals(start: Start) -> None:
    """A signal from another process is forwarded to the program, and the first process goes on until the program ends."""
    first = start(sys.executable, "-c", PRINTS_SIGNALS)
    assert "waits" == line(first)

    first.send_signal(signal.SIGINT)
    assert "SIGINT" == line(first)

    first.send_signal(signal.SIGTERM)
    assert "SIGTERM" == line(first)
    assert 5 == first.wait()


def test_a_terminal() -> None:
    """Ctrl-C in the terminal of the container reaches the program once: the terminal itself sends it to both processes."""
    master, slave = pty.openpty()
    try:
        takes_terminal = f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n{CODE}"
        words = [sys.executable, "-c", takes_terminal, sys.executable, "-c", PRINTS_SIGNALS]
        with subprocess.Popen(words, stdin=slave, stdout=subprocess.PIPE, text=True, start_new_session=True) as first:
            assert "waits" == line(first)
            os.write(master, b"\x03")
            assert "SIGINT" == line(first)
            first.send_signal(signal.SIGTERM)
            assert "SIGTERM" == line(first)
    finally:
        os.close(master)
        os.close(slave)
