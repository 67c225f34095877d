"""Ownership of sandboxes: which sandboxes are leftovers."""

from __future__ import annotations

import os
import subprocess
import sys

from pytest_agentbench.records import RolloutKey
from pytest_agentbench.sandbox.containers import DEADLINE, OWNER, is_leftover, labels, owner, start_time

KEY = RolloutKey("terminal", "copy-a-file")


def test_a_living_owner() -> None:
    """A sandbox of a running process is not a leftover before its deadline, whenever it was opened."""
    own = labels("a-run", KEY, deadline=1000.0)

    assert not is_leftover(own, now=999.0)
    assert is_leftover(own, now=1001.0)


def test_a_dead_owner() -> None:
    """A sandbox is a leftover if its process has ended, also if another process has the same id now."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    host, _, _ = owner().rsplit(":", 2)
    reused = {**labels("a-run", KEY, deadline=1000.0), OWNER: f"{host}:{os.getpid()}:1"}

    assert is_leftover({OWNER: f"{host}:{dead.pid}:1", DEADLINE: "1000"}, now=0.0)
    assert is_leftover(reused, now=0.0)


def test_a_zombie_owner() -> None:
    """A zombie counts as ended. In a container, PID 1 may never collect the killed pool of a killed session."""
    host, _, _ = owner().rsplit(":", 2)
    zombie = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    own = {OWNER: f"{host}:{zombie.pid}:{start_time(zombie.pid)}", DEADLINE: "1000"}
    assert not is_leftover(own, now=0.0)
    zombie.kill()
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)

    assert is_leftover(own, now=0.0)
    zombie.communicate()


def test_an_owner_elsewhere() -> None:
    """If the owner is on another machine, only the deadline decides, because its processes are not visible here."""
    _, pid, begun = owner().rsplit(":", 2)
    other = {**labels("a-run", KEY, deadline=1000.0), OWNER: f"another-host:{int(pid) + 1}:{begun}"}

    assert not is_leftover(other, now=999.0)
    assert is_leftover(other, now=1001.0)
