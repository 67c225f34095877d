"""Child processes of a session: how they start, what is said of them when they die, how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_agentbench.backends.child_process import Child, child_environment
from pytest_agentbench.errors import BackendError
from pytest_agentbench.lib.log_tail import LOG_TAIL

pytestmark = pytest.mark.timeout(120)

StartChild = Callable[..., Child]

SERVES = """
import sys
from pytest_agentbench.lib.child import read_config, serving
config = read_config()
serving(config=len(str(config)))
sys.stdin.buffer.read()
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StartChild]:
    """Starts a module with the given code as a child; all are stopped in the end."""
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
        child.ready(timeout)
    return str(caught.value)


def test_a_child_serves_and_leaves(start: StartChild) -> None:
    """A child gets its config, says what it serves, and leaves by itself when its stdin closes; stopping it twice is fine."""
    child = start(SERVES, port=5)

    assert {"config": len("{'port': 5}")} == child.ready()
    assert all(timer.finished.is_set() for timer in threading.enumerate() if isinstance(timer, threading.Timer))  # none would kill it later

    child.stop(grace=60)
    child.stop()

    assert 0 == child.process.returncode


SPENDS = """
import sys, time
from pytest_agentbench.lib.child import serving
memory = b"x" * (80 << 20)
while time.process_time() < 0.5:
    pass
serving()
sys.stdin.buffer.read()
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_what_a_child_costs(start: StartChild) -> None:
    """The CPU time and the peak of memory of a child that lives; of one that is gone nothing is known."""
    child = start(SPENDS)
    child.ready()
    cost = child.cost()
    child.stop(grace=60)

    assert cost is not None
    assert (True, True) == (cost["cpu_s"] >= 0.4, 80 < cost["peak_mib"] < 800)
    assert child.cost() is None


def test_a_large_config(start: StartChild) -> None:
    """A config far larger than a pipe's buffer arrives whole."""
    large = "x" * 5_000_000

    assert {"config": len(str({"suites": large}))} == start(SERVES, suites=large).ready()


def test_a_child_that_dies(start: StartChild) -> None:
    """The obituary names the command and the exit code, and carries the end of the log."""
    child = start("import sys\nfor number in range(100):\n    print('line', number, file=sys.stderr)\nsys.exit('no GPU')")

    first, *tail = refusal(child).splitlines()

    assert "`python -m child_0` died before it was ready (exit code 1); the end of child_0.log:" == first
    assert [*(f"    line {number}" for number in range(101 - LOG_TAIL, 100)), "    no GPU"] == tail


def test_a_child_that_dies_without_a_word(start: StartChild) -> None:
    """An empty log is said to be empty, a signal is an exit code below zero, and SIGKILL has a hint where it was not ours."""
    child = start("import os\nos.kill(os.getpid(), 9)")

    said = refusal(child)

    assert said.startswith("`python -m child_0` died before it was ready (exit code -9); it was killed by SIGKILL: mostly ")
    assert said.endswith("; the end of child_0.log:\n    (nothing)")


def test_a_child_that_dies_before_it_reads(start: StartChild) -> None:
    """A config that nobody reads is no error of its own: what the child said is."""
    assert "no GPU" in refusal(start("raise SystemExit('no GPU')", suites="x" * 5_000_000))


def test_a_module_that_is_none(tmp_path: Path) -> None:
    """A module that does not exist is a child that dies."""
    child = Child("pytest_agentbench.no_such_module", {}, tmp_path / "child.log")

    assert "No module named pytest_agentbench.no_such_module" in refusal(child)

    child.stop()


def test_a_child_that_never_serves(start: StartChild) -> None:
    """A child that says nothing in time is ended, and what it logged is shown."""
    child = start("import sys, time\nprint('loading', file=sys.stderr, flush=True)\ntime.sleep(600)")
    while not child.log.stat().st_size:
        time.sleep(0.01)

    assert "`python -m child_0` did not serve within 0.1 s (exit code -9); the end of child_0.log:\n    loading" == refusal(child, 0.1)


STUBBORN = """
import signal, time
from pytest_agentbench.lib.child import serving
signal.signal(signal.SIGTERM, signal.{action})
serving()
time.sleep(600)
"""


@pytest.mark.parametrize(("action", "exit_code"), [("SIG_DFL", -signal.SIGTERM), ("SIG_IGN", -signal.SIGKILL)])
def test_a_stubborn_child(start: StartChild, action: str, exit_code: int) -> None:
    """A child that does not leave when its stdin closes is terminated, and killed when that does not help."""
    child = start(STUBBORN.format(action=action))
    child.ready()
    child.stop(grace=0.2)

    assert exit_code == child.process.returncode


def test_what_is_printed_later_goes_to_the_log(start: StartChild) -> None:
    """Nobody reads a child's stdout after its first line, so that a talkative one would block: it is in the log instead."""
    child = start(SERVES.replace("serving(config=len(str(config)))", "serving()\nprint('x' * 1_000_000)\nprint('done', file=sys.stderr)"))
    child.ready()
    child.stop(grace=60)

    assert 0 == child.process.returncode
    assert ["done", "x" * 1_000_000] == sorted(child.log.read_text().splitlines())


def test_a_child_leaves_with_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However the controller ends, the pipe closes and the child leaves: here the controller is killed."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "child_of_the_killed.py").write_text(f"{SERVES}\nopen('left', 'w').close()")
    parent = """
import pathlib, time
from pytest_agentbench.backends.child_process import Child
child = Child("child_of_the_killed", {}, pathlib.Path("child.log"))
child.ready()
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
    """Ctrl-C on the terminal does not reach a child: it is in no process group of ours."""
    child = start(SERVES)
    child.ready()

    assert child.process.pid == os.getsid(child.process.pid)


def test_the_environment_of_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child does not think that it is the test run, and asks no proxy for loopback."""
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
