"""The labels of a sandbox: whose it is, and until when. By them leftovers are recognised, and nothing else is touched."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import cache

from pytest_agentbench.lib.process import PROC, lives
from pytest_agentbench.records import RolloutKey

PREFIX = "pytest-agentbench.sandbox"
DockerLabels = Mapping[str, str]
RUN, ROLLOUT, OWNER, DEADLINE = (f"{PREFIX}.{name}" for name in ("run", "rollout", "owner", "deadline"))


def labels(run: str, key: RolloutKey, deadline: float) -> dict[str, str]:
    """Of a sandbox of this process; `deadline` in seconds of time.time()."""
    return {RUN: run, ROLLOUT: str(key), OWNER: owner(), DEADLINE: f"{deadline:.0f}"}


@cache
def owner() -> str:
    """This process: machine, process id and start time, for process ids are used again."""
    return f"{_machine()}:{os.getpid()}:{started(os.getpid())}"


def _machine() -> str:
    """Where a process id means what it means here: containers that share an engine may have one host name, but not one PID namespace."""
    namespace = PROC / "self" / "ns" / "pid"
    return f"{os.uname().nodename}/{namespace.stat().st_ino if namespace.exists() else 0}"


def started(pid: int) -> str:
    """When a process began, as its system counts; empty where it has ended, which a zombie has too: not every PID 1 collects it soon."""
    import psutil

    if not lives(pid):
        return ""
    try:
        if PROC.exists():  # in ticks since the boot: times of day are computed from it, and move with the clock
            return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[19]
        return f"{psutil.Process(pid).create_time():.0f}"
    except (OSError, psutil.Error):
        return ""


def is_left(labels: DockerLabels, now: float | None = None) -> bool:
    """Whether nobody is there any more for a sandbox with these labels: its owner has ended, or its deadline is over."""
    if float(labels.get(DEADLINE, 0)) < (time.time() if now is None else now):
        return True
    machine, pid, begun = labels[OWNER].rsplit(":", 2)
    return machine == _machine() and started(int(pid)) != begun
