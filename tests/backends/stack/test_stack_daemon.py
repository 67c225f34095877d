"""Holders of stacks: sessions that die, kept stacks, and leftovers of stacks whose daemon died, too."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from pytest_agentbench.backends.machine import ports
from pytest_agentbench.backends.spec import SessionTerms
from pytest_agentbench.backends.stack import ownership, registry
from pytest_agentbench.backends.stack.kind import Stacked
from pytest_agentbench.backends.stack.protocol import StackDaemonConfig
from pytest_agentbench.backends.stack.stack_daemon import StackDaemon
from pytest_agentbench.errors import BackendError, MissingError
from pytest_agentbench.lib import process
from pytest_agentbench.lib.process import Child
from tests.backends.conftest import Boot, service, spec
from tests.small_stacks import daemon
from tests.waits import wait_for

pytestmark = pytest.mark.timeout(60)

#: A session that starts a stack, prints its folder and waits. With `fork`, a child process has the connection, too.
SESSION = """
import os, sys, time
from pathlib import Path
from pytest_agentbench.backends.stack import registry
from pytest_agentbench.backends.stack.spec import StackSpec
held = registry.start(StackSpec.model_validate_json(sys.argv[1]), Path(sys.argv[2]), gpu_wait=0, warm_up=0)
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
    """SIGKILL of the holder stops the stack and removes its ports and folder."""
    process, home, _ = session(tmp_path)
    process.kill()
    process.wait()
    wait_for(lambda: not Path(home).exists(), "the end of its folder")

    assert [] == list(ownership.processes(home))


def test_a_fork_of_a_killed_session(tmp_path: Path) -> None:
    """A forked process with the connection does not keep the stack up."""
    process, home, child = session(tmp_path, "fork")
    process.kill()
    process.wait()
    try:
        wait_for(lambda: not Path(home).exists(), "the end of its folder")
    finally:
        os.kill(child, signal.SIGKILL)

    assert [] == list(ownership.processes(home))


def test_session_and_stack_daemon_are_killed(tmp_path: Path, folder: Path) -> None:
    """Leftovers of a session and its stack daemon are found by their mark. Nothing without a mark is touched."""
    process, home, _ = session(tmp_path)
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (daemon,) = (facts.pid for _, facts in registry.running())
    assert daemon is not None
    os.kill(daemon, signal.SIGKILL)
    process.kill()
    process.wait()
    wait_for(lambda: not ownership.is_alive(home), "the end of its daemon")
    ((reaped, what),) = registry.clean_up()

    assert (home, 1) == (reaped, len(what))
    assert [] == list(ownership.processes(home)) and not Path(home).exists()
    assert [] == registry.clean_up()
    assert None is bystander.poll()
    bystander.kill()
    bystander.wait()


def test_sigterm_to_the_stack_daemon(boot: Boot) -> None:
    """SIGTERM makes the stack daemon stop the stack, and the holder learns it."""
    held = boot()
    held.ready()
    (daemon,) = (facts.pid for _, facts in registry.running())
    assert daemon is not None
    os.kill(daemon, signal.SIGTERM)
    wait_for(lambda: not held.home.exists(), "the end of its folder")

    assert "the stack was stopped: SIGTERM" == held.death()


def test_another_process_stops_the_stack(boot: Boot) -> None:
    """A session whose stack is ended by a command learns which process did that."""
    held = boot()
    held.ready()
    registry.end(held.home)

    assert f"the stack was stopped: requested by pid {os.getpid()}" == held.death()


def test_a_boot_that_fails_before_the_stack_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A late holder still gets the reason. The stack daemon does not end before that."""
    hold = registry._hold

    def late(home: Path, child: Child | None = None) -> registry.HeldStack:
        wait_for(lambda: "SHOP_KEY" in (tmp_path / "logs" / "stack_daemon.log").read_text(), "a line in its log")
        time.sleep(0.3)
        return hold(home, child)

    monkeypatch.setattr(registry, "_hold", late)
    wanted = spec(services={"engine": service(secrets=["SHOP_KEY"])})
    held = registry.start(wanted, tmp_path / "logs", gpu_wait=0, warm_up=0)

    with pytest.raises(MissingError, match="SHOP_KEY"):
        held.ready()
    held.stop()


def test_a_session_that_dies_before_it_holds_its_stack(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that dies before it holds its stack leaves nothing behind."""
    monkeypatch.setattr(registry, "_hold", lambda _home, child: child)
    child: Any = registry.start(spec(), tmp_path / "logs", gpu_wait=0, warm_up=0)
    child.process.stdin.close()
    wait_for(lambda: child.process.poll() is not None, "the end of the process", 15)

    assert [] == list(folder.iterdir())
    child.process.stdout.close()


def test_a_starting_stack_is_not_a_leftover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stack is locked from the beginning, so it never counts as a leftover."""
    reaped: list[object] = []
    ready = Child.ready

    def reap_first(self: Child, kind: type[Any]) -> Any:
        reaped.extend(registry.clean_up())
        return ready(self, kind)

    monkeypatch.setattr(Child, "ready", reap_first)
    held = registry.start(spec(), tmp_path / "logs", gpu_wait=0, warm_up=0)
    held.ready()
    held.stop()

    assert [] == reaped


def test_a_folder_that_is_too_deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error for a socket's path that is too long has advice, and nothing is left."""
    deep = tmp_path / ("d" * 80)
    monkeypatch.setenv("AGENTBENCH_STACKS", str(deep))

    with pytest.raises(BackendError, match=r"is longer than the 107 bytes that a socket's path may have; set AGENTBENCH_STACKS=/tmp/s$"):
        registry.start(spec(), tmp_path / "logs", gpu_wait=0, warm_up=0)
    assert [] == list(deep.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_a_folder_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner of the folder could impersonate stacks, so it must be this user."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)

    with monkeypatch.context() as here:
        here.setenv("AGENTBENCH_STACKS", str(theirs))
        with pytest.raises(BackendError, match=r"theirs, belongs to another user; set AGENTBENCH_STACKS to another$"):
            registry.find_kept(spec())


def test_a_stack_daemon_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for a stack daemon that hangs ends."""
    monkeypatch.setattr(registry, "ANSWER", 0.1)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "control"))
        listener.listen()

        with pytest.raises(BackendError, match="does not answer: timed out"):
            registry.end(tmp_path)


def test_a_holder_that_does_not_read(tmp_path: Path) -> None:
    """A holder whose buffer is full gets no more progress, so it does not delay the others."""
    with (tmp_path / "lock").open("w") as lock:
        daemon = StackDaemon(StackDaemonConfig(spec().model_dump(), "", {}, tmp_path, tmp_path, 0, 0, lock.fileno()))
    reader, theirs = socket.socketpair()
    with reader, theirs:
        daemon._holders[theirs] = "pid 1"
        assert [theirs] == daemon._readers()
        theirs.setblocking(False)
        with suppress(BlockingIOError):
            while theirs.send(b"progress" * 100):
                pass
        assert [] == daemon._readers()
    assert [] == daemon._readers()  # the connection was closed


def test_a_system_without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without /proc, no process is found by its mark, and none is killed."""
    monkeypatch.setattr(process, "PROC", tmp_path / "proc")

    assert [] == list(ownership.processes())
    assert [] == ownership.kill_marked("x")


def test_a_name_like_a_path(boot: Boot) -> None:
    """The name of a stack may contain any characters. The name of its folder contains only safe ones."""
    held = boot(spec(name="../lab/" * 9))
    held.ready()

    assert re.fullmatch(r"___lab____lab____lab-[0-9a-f]{8}", held.home.name)


def test_a_stack_is_kept(boot: Boot) -> None:
    """A kept stack waits for the next session with the same spec, which holds it alone. It ends after its time."""
    first = boot()
    url = first.ready().url
    first.keep(60)
    assert "" == registry.find_kept(spec())  # it still has a holder
    first.let_go()
    second = kept(note="other words")

    assert url == second.ready().url
    assert "" == registry.find_kept(spec())
    assert "" == registry.find_kept(spec(settings={"depth": 4}))
    second.keep(0.2)
    second.let_go()
    wait_for(lambda: not second.home.exists(), "the end of its folder")


def test_a_kept_stack_with_other_variables_is_not_used(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kept stack is not used if a variable that its engine inherits has changed. The reason names the variable."""
    monkeypatch.setenv("VLLM_ATTENTION_BACKEND", "FLASHINFER")
    monkeypatch.setenv("HF_TOKEN", "one")
    first = boot()
    first.ready()
    first.keep(60)
    first.let_go()
    monkeypatch.setenv("HF_TOKEN", "two")
    kept().let_go()

    monkeypatch.setenv("VLLM_ATTENTION_BACKEND", "TRITON")
    changed = 'environment.VLLM_ATTENTION_BACKEND "FLASHINFER" is now "TRITON"'
    ends = "`agentbench backend down small` ends it"
    assert f"a kept small is not used, because it was started with something else: {changed}; {ends}" == registry.find_kept(spec())
    assert first.boot["environment"] == {**first.boot["environment"], "VLLM_ATTENTION_BACKEND": "FLASHINFER", "HF_TOKEN": "[redacted]"}
    registry.end(first.home)


def kept(**keys: str) -> registry.HeldStack:
    """Waits until the stack daemon has noticed that it has no holder, and returns the kept stack."""
    found = wait_for(lambda: registry.find_kept(spec(**keys)), "a stack that is kept")
    assert isinstance(found, registry.HeldStack)
    return found


def test_a_boot_that_is_given_up_is_not_kept(tmp_path: Path) -> None:
    """Only a stack that has served is kept."""
    backend = Stacked(spec(services={"engine": service("--slow", "600")}), SessionTerms(keep=60))
    giving_up = threading.Timer(1, backend.stop)
    giving_up.start()
    with pytest.raises(BackendError, match=r"stopped while it started|the daemon of the stack has died"):
        backend.start(tmp_path / "logs")
    giving_up.join()

    assert [] == list(registry.running())


def test_a_look_before_a_death_is_noticed(tmp_path: Path, folder: Path) -> None:
    """If nothing listens at the URL of a stack, `look` returns only after the session has learned which service is unavailable."""
    backend = Stacked(spec(services={"engine": service(restart=1)}), SessionTerms())
    url = backend.start(tmp_path / "logs").url
    events: list[str] = []

    def tell(names: Collection[str]) -> bool:
        events.extend(names)
        return True

    watcher, looker = threading.Thread(target=backend.watch, args=[tell]), threading.Thread(target=lambda: events.append(backend.look()))
    watcher.start()
    keeper, (home,) = daemon(folder), folder.iterdir()
    os.kill(keeper, signal.SIGSTOP)  # a suspended daemon does not notice a death
    try:
        for pid, _ in ownership.processes(str(home)):
            if pid != keeper:
                os.kill(pid, signal.SIGKILL)
        wait_for(lambda: ports.is_free(urlsplit(url).port or 0), "the end of the service")
        looker.start()
        looker.join(0.5)
    finally:
        os.kill(keeper, signal.SIGCONT)
    looker.join()
    backend.stop()
    watcher.join()

    assert ["engine", ""] == events


def test_ending_a_stopped_stack(boot: Boot) -> None:
    """Ending a stack whose daemon has already stopped raises BackendError, because the daemon does not answer."""
    held = boot()
    held.ready()
    held.stop()

    with pytest.raises(BackendError, match="does not answer"):
        registry.end(held.home)


def test_a_stack_without_a_folder_is_dead(tmp_path: Path) -> None:
    """The mark of a stack whose folder does not exist counts as that of a dead stack."""
    assert not ownership.is_alive(str(tmp_path / "never"))
