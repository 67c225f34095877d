"""What stacks have left in the Docker Engine: found by label, and only where the stack is dead."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from pytest_agentbench.backends.stack.docker_engine import connect, speaking
from pytest_agentbench.backends.stack.ownership import LABEL
from pytest_agentbench.errors import BackendError

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
        with speaking("Docker does not tell what stacks have left"):
            every = list(_labelled(engine.api))
    finally:
        engine.close()
    dead = {stack for stack in {each.stack for each in every} if not stack_alive(stack)}
    return [each for each in every if each.stack in dead]


def remove(condemned: Sequence[Leftover], grace: float = 15) -> None:
    """Stops and removes them; what is gone already is no error. `grace` is the time between SIGTERM and SIGKILL in seconds."""
    if not condemned:
        return
    from docker.errors import NotFound

    engine = connect()
    try:
        for each in condemned:
            with speaking(f"{each.kind} {each.name} of stack {each.stack} cannot be removed"), suppress(NotFound):
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
