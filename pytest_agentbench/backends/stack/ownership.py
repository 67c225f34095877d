"""The marks that show to which stack a process or container belongs: an environment variable, and a label in Docker.

Cleaning up after stacks whose daemon is dead touches only processes and containers with a mark.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pytest_agentbench.backends.stack.docker_engine import as_backend_error, connect
from pytest_agentbench.errors import BackendError
from pytest_agentbench.lib import file_system, process

#: Environment variable of every process of a stack. Its value is the stack's folder.
VARIABLE = "AGENTBENCH_STACK"

#: Label of every container, network and volume of a stack. Its value is the stack's folder.
LABEL = "pytest-agentbench.stack"

LOCK = "lock"  # file in a stack's folder; the stack daemon holds its lock as long as it lives

KILL_TIMEOUT = 10.0  # seconds to wait for the end of killed processes


def marked(home: str) -> dict[str, str]:
    return {VARIABLE: home}


def lock(home: Path) -> int:
    """Takes the lock in the folder of a new stack, and returns the descriptor of the lock file.

    The stack daemon inherits the descriptor, so the lock is held from now until the daemon ends.
    """
    file = os.open(home / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    file_system.lock(file, wait=True)
    return file


def is_alive(home: str) -> bool:
    """Returns whether a stack has a living daemon. The daemon itself must not call this."""
    try:
        with Path(home, LOCK).open("rb") as file:
            return not file_system.lock(file, shared=True)
    except OSError:
        return False  # The folder has been removed.


def processes(home: str | None = None) -> Iterator[tuple[int, str]]:
    """Yields (pid, stack's folder) of every other living process of this user that has a mark. With `home`, only of that stack.

    Without /proc, as on macOS, it yields none. Services are then ended only by their process group.
    """
    return ((pid, folder) for pid, folder in process.with_variable(VARIABLE) if folder == (home or folder))


def is_marked(pid: int, home: str) -> bool:
    """Returns whether a process has the mark of the stack with this folder."""
    return process.variable_of(pid, VARIABLE) == home


def kill_marked(home: str) -> list[int]:
    """Kills all marked processes of a stack, and those that they start meanwhile. Waits for their end, and returns their pids."""
    killed: list[int] = []
    while pids := [pid for pid, _ in processes(home) if pid not in killed]:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed += pids
    end = time.monotonic() + KILL_TIMEOUT
    while any(processes(home)) and time.monotonic() < end:
        time.sleep(0.01)
    return killed


LeftoverKind = Literal["container", "network", "volume"]


@dataclass(frozen=True)
class Leftover:
    """A container, network or volume with the mark of a stack. `leftovers` returns those of stacks whose daemon is dead."""

    kind: LeftoverKind
    id: str
    name: str
    stack: str


def leftovers(stack_alive: Callable[[str], bool]) -> list[Leftover]:
    """Returns the containers, networks and volumes of dead stacks, in the order in which they can be removed.

    `stack_alive` tells whether the stack in a folder has a living daemon. Returns none if no Docker Engine answers.
    """
    try:
        engine = connect()
    except (BackendError, ImportError):
        return []
    try:
        with as_backend_error("Docker cannot list the leftovers of stacks"):
            every = list(_labelled(engine.api))
    finally:
        engine.close()
    dead = {stack for stack in {each.stack for each in every} if not stack_alive(stack)}
    return [each for each in every if each.stack in dead]


def remove(leftovers: Sequence[Leftover], grace: float = 15) -> None:
    """Stops and removes leftovers, and skips those that no longer exist. `grace` is the time between SIGTERM and SIGKILL in seconds."""
    if not leftovers:
        return
    from docker.errors import NotFound

    engine = connect()
    try:
        for each in leftovers:
            with as_backend_error(f"{each.kind} {each.name} of stack {each.stack} cannot be removed"), suppress(NotFound):
                _remove(engine.api, each, grace)
    finally:
        engine.close()


def _labelled(api: Any) -> Iterator[Leftover]:
    only = {"label": LABEL}
    for container in api.containers(all=True, filters=only):
        yield Leftover("container", container["Id"], container["Names"][0].lstrip("/"), container["Labels"][LABEL])
    for network in api.networks(filters=only):
        yield Leftover("network", network["Id"], network["Name"], network["Labels"][LABEL])
    for volume in api.volumes(filters=only)["Volumes"] or ():
        yield Leftover("volume", volume["Name"], volume["Name"], volume["Labels"][LABEL])


def _remove(api: Any, each: Leftover, grace: float) -> None:
    match each.kind:
        case "container":
            api.stop(each.id, timeout=math.ceil(grace))
            api.remove_container(each.id, force=True, v=True)
        case "network":
            api.remove_network(each.id)
        case "volume":
            api.remove_volume(each.id)
