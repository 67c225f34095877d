"""The mark that every process and container of a stack carries. Leftovers of dead stacks are found by it, and nothing else is touched."""

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

#: Environment variable of every process of a stack: the stack's folder.
VARIABLE = "AGENTBENCH_STACK"

#: Label of every container, network and volume of a stack: the same folder.
LABEL = "pytest-agentbench.stack"

LOCK = "lock"  # in a stack's folder; its daemon holds it as long as it lives

KILL_TIMEOUT = 10.0  # seconds that killed processes get to be gone


def marked(home: str) -> dict[str, str]:
    return {VARIABLE: home}


def lock(home: Path) -> int:
    """Takes the lock of a new stack; its descriptor, which the stack daemon inherits, so that the stack is never without an owner."""
    file = os.open(home / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    file_system.lock(file, wait=True)
    return file


def is_alive(home: str) -> bool:
    """Whether a stack has a stack daemon; the one who asks must not be it."""
    try:
        with Path(home, LOCK).open("rb") as file:
            return not file_system.lock(file, shared=True)
    except OSError:
        return False  # its folder is gone


def processes(home: str | None = None) -> Iterator[tuple[int, str]]:
    """(pid, stack's folder) of every living process of this user with a mark; only those of `home` when it is given.

    None where there is no /proc, as on macOS: there the end of a process group is all that is known of it.
    """
    return ((pid, folder) for pid, folder in process.with_variable(VARIABLE) if folder == (home or folder))


def is_marked(pid: int, home: str) -> bool:
    """Whether a process belongs to a stack."""
    return process.variable_of(pid, VARIABLE) == home


def kill_marked(home: str) -> list[int]:
    """SIGKILL to every process of a stack; returns their pids, once they are gone. What they start meanwhile is killed as well."""
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
    """Something in the engine that belongs to a stack."""

    kind: LeftoverKind
    id: str
    name: str
    stack: str


def leftovers(stack_alive: Callable[[str], bool]) -> list[Leftover]:
    """What dead stacks have left, in the order in which it can be removed; nothing where there is no engine."""
    try:
        engine = connect()
    except (BackendError, ImportError):
        return []
    try:
        with as_backend_error("Docker does not tell what stacks have left"):
            every = list(_labelled(engine.api))
    finally:
        engine.close()
    dead = {stack for stack in {each.stack for each in every} if not stack_alive(stack)}
    return [each for each in every if each.stack in dead]


def remove(leftovers: Sequence[Leftover], grace: float = 15) -> None:
    """Stops and removes them; what is gone already is no error. `grace` is the time between SIGTERM and SIGKILL in seconds."""
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
