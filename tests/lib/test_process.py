"""Child processes: how they start, the messages about their end, how they are stopped, and the inspection of other processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from pytest_agentbench.errors import BackendError
from pytest_agentbench.lib import process
from pytest_agentbench.lib.process import Child, child_environment, end_group, end_text, ended_within, kill_hint, variable_of, with_variable
from pytest_agentbench.lib.redact import LOG_TAIL
from pytest_agentbench.lib.wire import Listening
from tests.waits import wait_for

pytestmark = pytest.mark.timeout(120)

StartChild = Callable[..., Child]

SERVES = """
import sys
from pytest_agentbench.lib.wire import read_line, serving
from pytest_agentbench.lib.wire import Listening
serving(Listening(len(str(read_line()))))
sys.stdin.buffer.read()
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StartChild]:
    """Starts a module with the given code as a child. All children are stopped at the end."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    children: list[Child] = []

    def start(code: str, **config: object) -> Child:
        name = f"child_{len(children)}"
        (tmp_path / f"{name}.py").write_text(code)
        children.append(Child(name, config, tmp_path / "logs" / f"{name}.log"))
        return children[-1]

    yield start
    for child in children:
        child.stop(grace=1)


def refusal(child: Child, timeout: float = 60) -> str:
    with pytest.raises(BackendError) as caught:
        child.ready(Listening, timeout)
    return str(caught.value)


def test_a_child_serves_and_leaves(start: StartChild) -> None:
    """A child gets its configuration, reports that it is ready, and ends when its stdin closes. Stopping it twice is allowed."""
    child = start(SERVES, port=5)

    assert Listening(len("{'port': 5}")) == child.ready(Listening)
    # No timer is left that would kill the child later.
    assert all(timer.finished.is_set() for timer in threading.enumerate() if isinstance(timer, threading.Timer))

    child.stop(grace=60)
    child.stop()

    assert 0 == child.process.returncode


@pytest.mark.parametrize(
    ("line", "fault"),
    [("[1, 2]", "it is a list, not an object"), ('{"port": "5"}', "port is a text, not a whole number"), ("5 lamps", "")],
)
def test_another_first_line(start: StartChild, line: str, fault: str) -> None:
    """If the first line of a child is not the expected message, the child is ended, and the error says so."""
    child = start(f"import sys\nprint({line!r}, flush=True)\nsys.stdin.buffer.read()")
    said = refusal(child)

    assert f"` was ended, because its first line cannot be parsed: {fault}" in said
    assert "(exit code -9); the end of " in said


def test_an_interrupt_while_a_child_begins(start: StartChild) -> None:
    """Ctrl-C during the start leaves no timer thread, because the interpreter would wait for it when it exits."""
    child = start("import sys\nsys.stdin.buffer.read()")
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            child.ready(Listening)
    finally:
        signal.signal(signal.SIGALRM, before)

    assert all(timer.finished.is_set() for timer in threading.enumerate() if isinstance(timer, threading.Timer))


SPENDS = """
import sys, time
from pytest_agentbench.lib.wire import serving
from pytest_agentbench.lib.wire import Listening
memory = b"x" * (80 << 20)
while time.process_time() < 0.5:
    pass
serving(Listening(1))
sys.stdin.buffer.read()
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_what_a_child_costs(start: StartChild) -> None:
    """The CPU time and peak memory of a running child are known, those of an ended one are not."""
    child = start(SPENDS)
    child.ready(Listening)
    cost = child.cost()
    child.stop(grace=60)

    assert cost is not None
    assert (True, True) == (cost["cpu_s"] >= 0.4, 80 < cost["peak_mib"] < 800)
    assert child.cost() is None


def test_a_large_config(start: StartChild) -> None:
    """A config far larger than a pipe's buffer arrives whole."""
    large = "x" * 5_000_000

    assert Listening(len(str({"suites": large}))) == start(SERVES, suites=large).ready(Listening)


def test_a_config_that_cannot_be_written(start: StartChild) -> None:
    """A configuration that JSON cannot express is an error before the process starts, because a started one would wait for ever."""
    before = psutil.Process().children()

    with pytest.raises(TypeError, match="keys must be str"):
        start(SERVES, suites={(1, 2): "x"})

    assert before == psutil.Process().children()


def test_a_child_that_dies(start: StartChild) -> None:
    """The exit message has the command, the exit code and the end of the log."""
    child = start("import sys\nfor number in range(100):\n    print('line', number, file=sys.stderr)\nsys.exit('no GPU')")

    first, *tail = refusal(child).splitlines()

    assert "`python -m child_0` died before it was ready (exit code 1); the end of child_0.log:" == first
    assert [*(f"    line {number}" for number in range(101 - LOG_TAIL, 100)), "    no GPU"] == tail


def test_a_child_that_dies_with_an_empty_log(start: StartChild) -> None:
    """The exit message says that a log is empty. A signal is a negative exit code, and SIGKILL has a hint unless agentbench sent it."""
    child = start("import os\nos.kill(os.getpid(), 9)")

    said = refusal(child)

    assert said.startswith("`python -m child_0` died before it was ready (exit code -9); it was killed by SIGKILL, usually ")
    assert said.endswith("; the end of child_0.log:\n    (nothing)")


def test_a_child_that_dies_before_it_reads(start: StartChild) -> None:
    """If a child dies before it reads its configuration, the error is about its death."""
    assert "no GPU" in refusal(start("raise SystemExit('no GPU')", suites="x" * 5_000_000))


def test_a_missing_module(tmp_path: Path) -> None:
    """A missing module is reported as a child that died."""
    child = Child("pytest_agentbench.no_such_module", {}, tmp_path / "child.log")

    assert "No module named pytest_agentbench.no_such_module" in refusal(child)

    child.stop()


def test_a_child_that_never_serves(start: StartChild) -> None:
    """A child that is not ready in time is ended, and the end of its log is shown."""
    child = start("import sys, time\nprint('loading', file=sys.stderr, flush=True)\ntime.sleep(600)")
    while not child.log.stat().st_size:
        time.sleep(0.01)

    assert "`python -m child_0` did not serve within 0.1 s (exit code -9); the end of child_0.log:\n    loading" == refusal(child, 0.1)


STUBBORN = """
import signal, time
from pytest_agentbench.lib.wire import serving
from pytest_agentbench.lib.wire import Listening
signal.signal(signal.SIGTERM, signal.{action})
serving(Listening(1))
time.sleep(600)
"""


@pytest.mark.parametrize("has_pidfd", [True, False])
@pytest.mark.parametrize(("action", "exit_code"), [("SIG_DFL", -signal.SIGTERM), ("SIG_IGN", -signal.SIGKILL)])
def test_a_stubborn_child(start: StartChild, monkeypatch: pytest.MonkeyPatch, action: str, exit_code: int, *, has_pidfd: bool) -> None:
    """A child that does not end when its stdin closes gets SIGTERM, and then SIGKILL."""
    if not has_pidfd:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    child = start(STUBBORN.format(action=action))
    child.ready(Listening)
    child.stop(grace=0.2)

    assert exit_code == child.process.returncode


def test_what_is_printed_later_goes_to_the_log(start: StartChild) -> None:
    """After the first line, a child's stdout goes to its log, because a full pipe would block the child."""
    child = start(
        SERVES.replace(
            "serving(Listening(len(str(read_line()))))", "serving(Listening(1))\nprint('x' * 1_000_000)\nprint('done', file=sys.stderr)"
        )
    )
    child.ready(Listening)
    child.stop(grace=60)

    assert 0 == child.process.returncode
    assert ["done", "x" * 1_000_000] == sorted(child.log.read_text().splitlines())


def test_a_child_leaves_with_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child ends when its parent is killed, because that closes the pipe."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "child_of_the_killed.py").write_text(f"{SERVES}\nopen('left', 'w').close()")
    parent = """
import pathlib, time
from pytest_agentbench.lib.process import Child
child = Child("child_of_the_killed", {}, pathlib.Path("child.log"))
child.ready(dict)
print(child.process.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", parent], cwd=tmp_path, stdout=subprocess.PIPE) as controller:
        assert controller.stdout is not None
        assert int(controller.stdout.readline()) > 0
        controller.kill()
    while not (tmp_path / "left").exists():
        time.sleep(0.01)


def test_a_session_of_its_own(start: StartChild) -> None:
    """Ctrl-C on the terminal does not reach a child, because it is in another process group."""
    child = start(SERVES)
    child.ready(Listening)

    assert child.process.pid == os.getsid(child.process.pid)


def test_the_environment_of_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child does not inherit variables of pytest and coverage, and uses no proxy for loopback."""
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "x")
    monkeypatch.setenv("COV_CORE_SOURCE", "x")
    monkeypatch.setenv("COVERAGE_PROCESS_START", "x")
    monkeypatch.setenv("NO_PROXY", "example.org")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("SHOP_COLOUR", "red")

    environment = child_environment()

    assert [] == [name for name in environment if name.startswith(("PYTEST_", "COV_", "COVERAGE_"))]
    assert ("example.org,127.0.0.1,localhost", "127.0.0.1,localhost") == (environment["NO_PROXY"], environment["no_proxy"])
    assert "red" == environment["SHOP_COLOUR"]
    json.dumps(environment)


def test_how_a_process_ended() -> None:
    """The text has the name of the signal, or its number if it has no name. For any other end it has the exit code."""
    nameless = signal.SIGRTMIN + 1
    ends = [end_text(code) for code in (0, 3, -signal.SIGSEGV, -nameless)]

    assert [
        "ended with exit code 0",
        "ended with exit code 3",
        "was ended by SIGSEGV",
        f"was ended by signal {nameless}",
    ] == ends


@pytest.mark.parametrize(("code", "known"), [(-9, True), (137, True), (-15, False), (1, False), (0, False), (None, False)])
def test_what_sigkill_means(code: int | None, known: bool) -> None:
    """An exit code that means SIGKILL has a hint with the likely causes. Other exit codes have none."""
    assert known == kill_hint(code).startswith("it was killed by SIGKILL, usually by the kernel's out-of-memory killer")
    assert known or not kill_hint(code)


def test_the_end_of_a_process_for_which_another_thread_waits() -> None:
    """Only one of two threads gets the exit code from the system, but both learn it."""
    with subprocess.Popen(["sleep", "600"]) as ending:
        other = threading.Thread(target=ending.wait)
        other.start()
        early = ended_within(ending, 0.01)
        ending.terminate()

        assert (False, True) == (early, ended_within(ending, 60))
        other.join()
    assert (True, -signal.SIGTERM) == (ended_within(ending, 0), ending.returncode)


LEAVES = "import subprocess, sys; print(subprocess.Popen(['sleep', '600'], stdout=2).pid, flush=True); sys.exit({code})"


@pytest.mark.parametrize("grace", [0, 60])
def test_a_group_whose_leader_has_ended(grace: float) -> None:
    """Ending a group ends all its processes, also if its leader has already ended."""
    with subprocess.Popen([sys.executable, "-c", LEAVES.format(code=3)], stdout=subprocess.PIPE, start_new_session=True) as leader:
        assert leader.stdout is not None
        left = int(leader.stdout.readline())
        os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOWAIT)
        lived = process.lives(left)
        end_group(leader, grace)

    assert (True, 3) == (lived, leader.returncode)
    while process.lives(left):
        time.sleep(0.01)


def test_a_zombie_does_not_live() -> None:
    """A zombie does not count as running."""
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)

        assert not process.lives(ended.pid)
    assert process.lives(os.getpid())
    assert not process.lives(ended.pid)


def test_the_process_that_listens() -> None:
    """A port with a listener on IPv4 or IPv6 leads to its process.

    A port that is only bound, or has only an open connection, leads to none.
    """
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family) as taken:
            taken.bind((host, 0))
            port = taken.getsockname()[1]
            before = process.listener(port)
            taken.listen()

            assert (0, os.getpid()) == (before, process.listener(port))
            client = socket.create_connection((host, port))
            server, _ = taken.accept()
        with client, server:  # The listener is closed, and only connections are left on the port.
            assert 0 == process.listener(port)


def test_names_of_processes(tmp_path: Path) -> None:
    """A name of more than 15 characters, which the kernel truncates, is complete. The name of an ended process is unknown."""
    program = tmp_path / "a-program-with-a-long-name"
    program.symlink_to(Path("/bin/sleep").resolve())
    with subprocess.Popen([program, "600"]) as running:
        arguments = Path(f"/proc/{running.pid}/cmdline")  # the kernel sets the arguments last
        wait_for(arguments.read_bytes, "arguments of a process")
        name = process.name(running.pid)
        running.kill()

    assert program.name == name
    assert "of another container or user" == process.name(running.pid)


#: Overwrites the first variable of its environment, like programs that set their title for `ps`.
OVERWRITES = """
import ctypes, os, sys
start = int(open("/proc/self/stat").read().rpartition(")")[2].split()[47])
ctypes.memset(start, 0, open("/proc/self/environ", "rb").read().index(b"\\0"))
print("done", flush=True)
sys.stdin.read()
"""


def test_a_mark_in_an_environment(tmp_path: Path) -> None:
    """Processes are found by a variable that they were started with, even if an earlier variable is overwritten."""
    mark = f"mark-{tmp_path}"
    environment = {"AAA": "first", "SHOP_MARK": mark, "PATH": os.environ["PATH"]}
    with subprocess.Popen(
        [sys.executable, "-c", OVERWRITES], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as marked:
        assert marked.stdout is not None
        marked.stdout.readline()
        raw = Path(f"/proc/{marked.pid}/environ").read_bytes()
        seen = [pid for pid, value in with_variable("SHOP_MARK") if value == mark]
        marked.kill()

    assert raw.startswith(b"\0")
    assert [marked.pid] == seen
    assert "" == variable_of(marked.pid, "SHOP_MARK")
    assert "" == variable_of(os.getpid(), "SHOP_MARK")
