"""Stacks of other versions of this package: they are listed and ended, but not used."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.backends.stack import registry
from pytest_agentbench.backends.stack.protocol import FROM_DAEMON, HoldStack, StackFacts
from pytest_agentbench.cli import main
from pytest_agentbench.errors import BackendError
from pytest_agentbench.lib import wire
from pytest_agentbench.lib.wire import PROTOCOL, OtherVersion, header
from tests.backends.conftest import Boot, spec
from tests.waits import wait_for

pytestmark = pytest.mark.timeout(60)

Capture = pytest.CaptureFixture[str]

#: A process of another version keeps a stack.
KEEPER = """
import sys
from pathlib import Path
from pytest_agentbench.backends.stack import registry
from pytest_agentbench.backends.stack.spec import StackSpec
held = registry.start(StackSpec.model_validate_json(sys.argv[1]), Path(sys.argv[2]), gpu_wait=0, warm_up=0)
held.ready()
held.keep(600)
held.let_go()
"""


def asked(home: Path, message: object) -> Any:
    """A stack daemon's answer, and whether it closes the connection afterwards."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(str(home / "control"))
        connection.sendall(wire.framed(message if isinstance(message, list) else header(message)))
        try:
            answer: object = FROM_DAEMON.read(wire.receive(connection)[0])
        except OtherVersion as error:
            answer = str(error)
        return answer, connection.recv(1) == b""


def test_a_stack_daemon_of_another_protocol(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """A kept stack of another version is not used. The reason names the command that ends it, and the command works."""
    (tmp_path / "sitecustomize.py").write_text("from pytest_agentbench.lib import wire\nwire.PROTOCOL += 1\n")
    with monkeypatch.context() as there:
        there.setenv("PYTHONPATH", str(tmp_path))
        subprocess.run([sys.executable, "-c", KEEPER, spec().model_dump_json(), str(tmp_path / "logs")], check=True)
    (home, facts) = next(registry.running())
    why = wait_for(lambda: registry.find_kept(spec()), "a reason")

    assert (
        "a kept small is not used, because it was started by another version of pytest-agentbench; `agentbench backend down small` ends it"
        == why
    )
    refused = f"a process speaks protocol {PROTOCOL}, and this one protocol {PROTOCOL + 1}: both need the same version of pytest-agentbench"
    assert (refused, True) == asked(home, HoldStack(alone=False))
    assert ("ready", 0) == (facts.state, main(["backend", "down", "small"]))
    assert capsys.readouterr().out.startswith("small is down after ")
    assert [] == [*folder.iterdir()]
    log = (tmp_path / "logs" / "stack_daemon.log").read_text()
    assert f": {refused}\n" in log and "stopping: SIGTERM\n" in log


def test_a_stack_daemon_that_this_process_has_started(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stack daemon that turns out to be of another version is stopped without leftovers."""
    (tmp_path / "sitecustomize.py").write_text("from pytest_agentbench.lib import wire\nwire.PROTOCOL += 1\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    with pytest.raises(BackendError, match="both need the same version"):
        registry.start(spec(), tmp_path / "logs", gpu_wait=0, warm_up=0)

    assert [] == [*folder.iterdir()]


def test_a_message_that_cannot_be_read(boot: Boot) -> None:
    """The sender of an invalid message gets the reason, and the stack stays up for its holder."""
    held = boot()
    held.ready()

    assert ("the message 'Lend' is unknown; known are: HoldStack, KeepStack, StopStack, Refused", True) == asked(held.home, ["Lend", {}])
    assert ("alone is a whole number, not true or false", True) == asked(held.home, ["HoldStack", {"alone": 1, "protocol": PROTOCOL}])
    assert "ready" == next(registry.running())[1].state


@pytest.mark.parametrize(
    ("content", "name", "line"),
    [
        ('{"backend": "small", "pids": [1], "state": "ready", "url": "http://h/v1"}', "small", "ready     http://h/v1  since -"),
        ('{"name": "small", "state": "ready"}', "", "unknown   -  since -"),
        ('{"backend": "small", "pid": "seven"}', "", "unknown   -  since -"),
        ("[]", "", "unknown   -  since -"),
        ("small", "", "unknown   -  since -"),
    ],
)
def test_facts_of_another_version(boot: Boot, capsys: Capture, content: str, name: str, line: str) -> None:
    """A stack is listed and ended whatever its stack.json contains. If its name cannot be read, its folder's name is used."""
    held = boot()
    held.ready()
    (held.home / "stack.json").write_text(content)
    name = name or held.home.name
    listed = main(["backend", "status"]), capsys.readouterr().out.splitlines()
    logs = main(["backend", "logs", name]), capsys.readouterr().err
    down = main(["backend", "down", name]), capsys.readouterr().out

    assert (0, f"{name:<20} {line}") == (listed[0], listed[1][0])
    assert f"stack daemon -, GPUs none, logs -, folder {held.home}" == listed[1][1].strip()
    assert (4, True) == (logs[0], "an unknown folder contains no log of any service" in logs[1])
    assert (0, True) == (down[0], down[1].startswith(f"{name} is down after "))
    assert not held.home.exists()


@pytest.mark.parametrize(("content", "name"), [('{"backend": "small", "pids": [1]}', "small"), ("{}", "small-1")])
def test_leftovers_of_another_version(folder: Path, content: str, name: str) -> None:
    """Leftovers of a dead stack daemon are cleaned up whatever its stack.json contains."""
    homes = [folder / f"small-{number}" for number in (1, 2)]
    for home in homes:
        home.mkdir(parents=True)
    (homes[0] / "stack.json").write_text(content)

    assert f"cleaned up after a killed stack daemon: {name} (only its folder)" == registry.clean_up_orphans()
    assert [(str(homes[1]), [])] == registry.clean_up()


def test_facts_are_updated(boot: Boot) -> None:
    """The facts of a stack show when it is ready, its URL, how long it is kept, and that it has a holder again."""
    held = boot()
    url = held.ready().url
    held.keep(60)
    facts = wait_for(lambda: kept(held.home), "the seconds that it is kept")
    held.let_go()
    unused = wait_for(lambda: kept(held.home, unused=True), "the time of its end")
    registry.end(held.home)

    assert ("small", "ready", url, "tiny", None) == (facts.backend, facts.state, facts.url, facts.model, facts.until)
    assert unused.until is not None and facts.pid == unused.pid


def kept(home: Path, *, unused: bool = False) -> StackFacts | None:
    """Returns the facts of a stack when it is kept, or kept and without a holder."""
    facts = next(facts for at, facts in registry.running() if at == home)
    assert json.loads((home / "stack.json").read_text()).keys() > {"backend", "pid", "logs"}
    return facts if facts.keep_s == 60 and (facts.until is not None) == unused else None


def test_a_stack_that_does_not_stop(boot: Boot, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """A stack that does not stop in time is reported as such, not as stopped."""
    held = boot()
    held.ready()
    with monkeypatch.context() as patched:
        patched.setattr(registry, "STOP_TIMEOUT", 0.0)
        status = main(["backend", "down", "small"])
    said = capsys.readouterr()

    assert (1, "") == (status, said.out)
    assert f"the stack in {held.home} has not stopped within 0 s; stack_daemon.log shows what it waits for" in said.err
    wait_for(lambda: not held.home.exists(), "the end of the stack")
