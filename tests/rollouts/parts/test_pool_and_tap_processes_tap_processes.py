"""The taps of a session share one port for agents, which stays reserved when a tap dies."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_agentbench.errors import BackendError
from pytest_agentbench.lib import wire
from pytest_agentbench.rollouts.parts.pool_and_tap_processes import TapProcesses
from pytest_agentbench.tap.protocol import FROM_TAP, Budgets, FromTap, GetTapStats, TapStats

pytestmark = pytest.mark.timeout(120)

IDLE = TapStats(in_flight=0, open=0, clock_steps=0)


@contextmanager
def tap_processes(folder: Path, count: int) -> Iterator[TapProcesses]:
    """Starts taps that end with the block."""
    taps = TapProcesses(count, Budgets(), folder / "logs")
    try:
        yield taps
    finally:
        for child in taps.stop():
            child.process.kill()
            child.stop()


def kill(taps: TapProcesses, name: str) -> None:
    """Kills a tap, and waits until it has ended."""
    child = taps.children[name]
    os.kill(child.process.pid, signal.SIGKILL)
    child.process.wait(30)
    child.close_pipes()


def states(taps: TapProcesses) -> list[FromTap]:
    """Returns the answer of each tap on its control port."""
    answers = []
    for port in taps.facts.control_ports:
        with wire.connect(port, taps.facts.token, "pool") as connection:
            connection.settimeout(30)
            wire.send(connection, GetTapStats())
            answers.append(FROM_TAP.read(wire.receive(connection)[0]))
    return answers


def accepts(port: int) -> bool:
    """Returns whether a process listens on the port for agents."""
    try:
        socket.create_connection(("127.0.0.1", port), 10).close()
    except ConnectionRefusedError:
        return False
    return True


def is_kept(port: int) -> bool:
    """Returns whether processes that do not share a port cannot bind it."""
    with socket.socket() as other:
        try:
            other.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def test_taps_share_a_port(tmp_path: Path) -> None:
    """After `ready` all taps serve. They share one port for agents, and each has its own control port and log."""
    with tap_processes(tmp_path, 3) as taps:
        taps.ready()

        assert ["tap", "tap-2", "tap-3"] == [*taps.children]
        assert [IDLE] * 3 == states(taps)
        assert 3 == len({*taps.facts.control_ports})
        assert accepts(taps.facts.port)
    assert ["tap-2.log", "tap-3.log", "tap.log"] == sorted(file.name for file in (tmp_path / "logs").iterdir())


def test_the_port_is_kept_while_no_tap_lives(tmp_path: Path) -> None:
    """While the only tap is dead, agents are refused and no other process can take the port. The next tap listens there again."""
    with tap_processes(tmp_path, 1) as taps:
        taps.ready()
        before, first = taps.facts, taps.children["tap"]
        kill(taps, "tap")

        assert (False, True) == (accepts(before.port), is_kept(before.port))
        assert taps.start_again("tap")
        assert accepts(before.port)
        assert (before.port, before.token) == (taps.facts.port, taps.facts.token)
        assert taps.children["tap"] is not first
        assert [IDLE] == states(taps)


def test_one_of_two_is_started_again(tmp_path: Path) -> None:
    """The other tap is not affected, and the new tap takes the dead one's place among the control ports."""
    with tap_processes(tmp_path, 2) as taps:
        taps.ready()
        before, other = taps.facts, taps.children["tap-2"]
        kill(taps, "tap")

        assert taps.start_again("tap")
        assert other is taps.children["tap-2"]
        assert before.control_ports[1] == taps.facts.control_ports[1]
        assert before.control_ports[0] != taps.facts.control_ports[0]
        assert [IDLE] * 2 == states(taps)


def test_none_is_started_after_the_end(tmp_path: Path) -> None:
    """After `end` no tap is started again, and the others serve. `stop` returns all processes, even dead ones, and frees the port."""
    with tap_processes(tmp_path, 2) as taps:
        taps.ready()
        kill(taps, "tap")
        children = [*taps.children.values()]
        taps.end()

        assert not taps.start_again("tap")
        assert accepts(taps.facts.port)
        assert children == taps.stop()
        assert children == [*taps.children.values()]
        children[1].stop()
        assert not is_kept(taps.facts.port)


def test_taps_that_do_not_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tap that dies before it serves raises BackendError with the end of its log, at the first start and at a restart."""
    (tmp_path / "uvloop.py").write_text("raise ImportError('this is another uvloop')")
    with tap_processes(tmp_path, 1) as taps:
        taps.ready()
        kill(taps, "tap")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

        with pytest.raises(BackendError, match=r"died before it was ready(?s:.)*this is another uvloop"):
            taps.start_again("tap")
    with tap_processes(tmp_path, 2) as taps, pytest.raises(BackendError, match="this is another uvloop"):
        taps.ready()
