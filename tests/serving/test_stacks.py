"""Who holds a stack: sessions that die, stacks that are kept, and leftovers of those whose guardian died too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_agentbench.errors import BackendError
from pytest_agentbench.serving import marks, stacks
from tests.serving.conftest import Boot, spec
from tests.serving.test_stack import until

pytestmark = pytest.mark.timeout(60)

#: A session that boots a stack, says its folder and waits; with `fork` a child of it has the connection as well.
SESSION = """
import os, sys, time
from pathlib import Path
from pytest_agentbench.serving import stacks
from pytest_agentbench.serving.stackspec import StackSpec
held = stacks.start(StackSpec.model_validate_json(sys.argv[1]), Path(sys.argv[2]), gpu_wait=0, warm_up=0)
held.ready()
child = os.fork() if sys.argv[3] == "fork" else 1
if child:
    print(held.home, child, flush=True)
time.sleep(600)
"""


def session(tmp_path: Path, fork: str = "") -> tuple[subprocess.Popen[str], str, int]:
    command = [sys.executable, "-c", SESSION, spec().model_dump_json(), str(tmp_path / "logs"), fork]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    home, child = process.stdout.readline().split()
    process.stdout.close()
    return process, home, int(child)


def test_a_session_is_killed(tmp_path: Path) -> None:
    """SIGKILL of whoever holds a stack tears it down, ports and folder included."""
    process, home, _ = session(tmp_path)
    process.kill()
    process.wait()
    until(lambda: not Path(home).exists())

    assert [] == list(marks.processes(home))


def test_a_fork_of_a_killed_session(tmp_path: Path) -> None:
    """A forked process that still has the connection does not keep the stack."""
    process, home, child = session(tmp_path, "fork")
    process.kill()
    process.wait()
    try:
        until(lambda: not Path(home).exists())
    finally:
        os.kill(child, signal.SIGKILL)

    assert [] == list(marks.processes(home))


def test_session_and_guardian_are_killed(tmp_path: Path, folder: Path) -> None:
    """What both left behind is found by its mark; nothing without a mark is touched."""
    process, home, _ = session(tmp_path)
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (guardian,) = (facts["pid"] for _, facts in stacks.running())
    os.kill(guardian, signal.SIGKILL)
    process.kill()
    process.wait()
    until(lambda: not marks.is_alive(home))
    ((reaped, what),) = stacks.reap()

    assert (home, 1) == (reaped, len(what))
    assert [] == list(marks.processes(home)) and not Path(home).exists()
    assert [] == stacks.reap()
    assert None is bystander.poll()
    bystander.kill()
    bystander.wait()


def test_sigterm_to_the_guardian(boot: Boot) -> None:
    """The guardian itself ends in order as well."""
    held = boot()
    held.ready()
    (guardian,) = (facts["pid"] for _, facts in stacks.running())
    os.kill(guardian, signal.SIGTERM)
    until(lambda: not held.home.exists())

    assert "" == held.death()


def test_a_stack_is_kept(boot: Boot) -> None:
    """A stack that is kept waits for the next session of the same spec, which has it alone, and ends when its time is over."""
    first = boot()
    url = first.ready().url
    first.keep(60)
    assert None is stacks.find_kept(spec())  # while somebody holds it
    first.let_go()
    second = kept(note="other words")

    assert url == second.ready().url
    assert None is stacks.find_kept(spec())
    assert None is stacks.find_kept(spec(settings={"depth": 4}))
    second.keep(0.2)
    second.let_go()
    until(lambda: not second.home.exists())


def kept(**keys: str) -> stacks.Held:
    """The stack that was just let go: its guardian learns of that a little later."""
    end = time.monotonic() + 20
    while (found := stacks.find_kept(spec(**keys))) is None:
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


def test_a_stack_that_is_refused(boot: Boot) -> None:
    """A stack that does not answer any more is no stack to hold."""
    held = boot()
    held.ready()
    held.stop()

    with pytest.raises(BackendError, match="does not answer"):
        stacks.attach(held.home)


def test_nobody_comes(tmp_path: Path) -> None:
    """A mark of a dead stack is seen as such, also when its folder is gone."""
    assert not marks.is_alive(str(tmp_path / "never"))
