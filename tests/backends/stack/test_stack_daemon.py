"""Who holds a stack: sessions that die, stacks that are kept, and leftovers of those whose stack daemon died too."""

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

#: A session that boots a stack, says its folder and waits; with `fork` a child of it has the connection as well.
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
    """SIGKILL of whoever holds a stack tears it down, ports and folder included."""
    process, home, _ = session(tmp_path)
    process.kill()
    process.wait()
    wait_for(lambda: not Path(home).exists(), "the end of its folder")

    assert [] == list(ownership.processes(home))


def test_a_fork_of_a_killed_session(tmp_path: Path) -> None:
    """A forked process that still has the connection does not keep the stack."""
    process, home, child = session(tmp_path, "fork")
    process.kill()
    process.wait()
    try:
        wait_for(lambda: not Path(home).exists(), "the end of its folder")
    finally:
        os.kill(child, signal.SIGKILL)

    assert [] == list(ownership.processes(home))


def test_session_and_stack_daemon_are_killed(tmp_path: Path, folder: Path) -> None:
    """What both left behind is found by its mark; nothing without a mark is touched."""
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
    """The stack daemon itself ends in order as well, and whoever uses the stack hears of it."""
    held = boot()
    held.ready()
    (daemon,) = (facts.pid for _, facts in registry.running())
    assert daemon is not None
    os.kill(daemon, signal.SIGTERM)
    wait_for(lambda: not held.home.exists(), "the end of its folder")

    assert "it was stopped: SIGTERM" == held.death()


def test_somebody_else_stops_it(boot: Boot) -> None:
    """A session whose stack is ended by hand is told who did that."""
    held = boot()
    held.ready()
    registry.end(held.home)

    assert f"it was stopped: requested by pid {os.getpid()}" == held.death()


def test_a_boot_that_fails_before_anybody_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes late still learns why; the stack daemon does not go before."""
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


def test_nobody_holds_it(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that dies before it holds what it has started leaves nothing either."""
    monkeypatch.setattr(registry, "_hold", lambda _home, child: child)
    child: Any = registry.start(spec(), tmp_path / "logs", gpu_wait=0, warm_up=0)
    child.process.stdin.close()
    wait_for(lambda: child.process.poll() is not None, "the end of the process", 15)

    assert [] == list(folder.iterdir())
    child.process.stdout.close()


def test_reaped_while_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stack has an owner from the first moment on: nobody takes it for a leftover."""
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
    """A socket's path is short; what to do about that is said, and nothing is left."""
    deep = tmp_path / ("d" * 80)
    monkeypatch.setenv("AGENTBENCH_STACKS", str(deep))

    with pytest.raises(BackendError, match=r"is longer than the 107 bytes that a socket's path may have; set AGENTBENCH_STACKS=/tmp/s$"):
        registry.start(spec(), tmp_path / "logs", gpu_wait=0, warm_up=0)
    assert [] == list(deep.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_a_folder_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever owns the folder could answer for our stacks."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)

    with monkeypatch.context() as here:
        here.setenv("AGENTBENCH_STACKS", str(theirs))
        with pytest.raises(BackendError, match=r"theirs, belongs to another user; set AGENTBENCH_STACKS to another$"):
            registry.find_kept(spec())


def test_a_stack_daemon_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for ever for a stack daemon that hangs."""
    monkeypatch.setattr(registry, "ANSWER", 0.1)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "control"))
        listener.listen()

        with pytest.raises(BackendError, match="does not answer: timed out"):
            registry.end(tmp_path)


def test_a_holder_that_does_not_read(tmp_path: Path) -> None:
    """One whose buffer fills up hears no more of the progress, so that nobody else waits for it."""
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
    assert [] == daemon._readers()  # it was closed


def test_a_system_without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There no process is found by its mark, and none is killed for it."""
    monkeypatch.setattr(process, "PROC", tmp_path / "proc")

    assert [] == list(ownership.processes())
    assert [] == ownership.kill_marked("x")


def test_a_name_like_a_path(boot: Boot) -> None:
    """A name may have any letters; its folder does not."""
    held = boot(spec(name="../lab/" * 9))
    held.ready()

    assert re.fullmatch(r"___lab____lab____lab-[0-9a-f]{8}", held.home.name)


def test_a_stack_is_kept(boot: Boot) -> None:
    """A stack that is kept waits for the next session of the same spec, which has it alone, and ends when its time is over."""
    first = boot()
    url = first.ready().url
    first.keep(60)
    assert "" == registry.find_kept(spec())  # while somebody holds it
    first.let_go()
    second = kept(note="other words")

    assert url == second.ready().url
    assert "" == registry.find_kept(spec())
    assert "" == registry.find_kept(spec(settings={"depth": 4}))
    second.keep(0.2)
    second.let_go()
    wait_for(lambda: not second.home.exists(), "the end of its folder")


def test_a_kept_stack_that_inherited_something_else_is_passed_over(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that its engine would inherit has changed since a kept stack was started: it is not used, and the reason names it."""
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
    """The stack that was just let go: its daemon learns of that a little later."""
    found = wait_for(lambda: registry.find_kept(spec(**keys)), "a stack that is kept")
    assert isinstance(found, registry.HeldStack)
    return found


def test_a_boot_that_is_given_up_is_not_kept(tmp_path: Path) -> None:
    """Only a stack that has served stays."""
    backend = Stacked(spec(services={"engine": service("--slow", "600")}), SessionTerms(keep=60))
    giving_up = threading.Timer(1, backend.stop)
    giving_up.start()
    with pytest.raises(BackendError, match=r"stopped while it started|its daemon has died"):
        backend.start(tmp_path / "logs")
    giving_up.join()

    assert [] == list(registry.running())


def test_a_look_before_a_death_is_noticed(tmp_path: Path, folder: Path) -> None:
    """A look at a stack that nothing listens for any more ends when the session has been told what is away, and not before."""
    backend = Stacked(spec(services={"engine": service(restart=1)}), SessionTerms())
    url = backend.start(tmp_path / "logs").url
    events: list[str] = []

    def tell(names: Collection[str]) -> bool:
        events.extend(names)
        return True

    watcher, looker = threading.Thread(target=backend.watch, args=[tell]), threading.Thread(target=lambda: events.append(backend.look()))
    watcher.start()
    keeper, (home,) = daemon(folder), folder.iterdir()
    os.kill(keeper, signal.SIGSTOP)  # it does not notice
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


def test_a_stack_that_is_refused(boot: Boot) -> None:
    """A stack that does not answer any more is no stack to hold."""
    held = boot()
    held.ready()
    held.stop()

    with pytest.raises(BackendError, match="does not answer"):
        registry.end(held.home)


def test_nobody_comes(tmp_path: Path) -> None:
    """A mark of a dead stack is seen as such, also when its folder is gone."""
    assert not ownership.is_alive(str(tmp_path / "never"))
