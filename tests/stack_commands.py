"""The commands that the services of a stack would run, without starting anything."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_agentbench.backends.spec import load_backend
from pytest_agentbench.backends.stack.instances import Factory, Instance, instances_of, share_out
from pytest_agentbench.backends.stack.kind import StackKind
from pytest_agentbench.backends.stack.spec import StackSpec
from pytest_agentbench.backends.stack.templates import expand

ROOT = Path(__file__).parents[1]
FIRST_PORT = 30000


def stack(name: str, changes: Sequence[tuple[str, Any]] = ()) -> StackKind:
    """Loads a stack by the name of a shipped backend, or by its YAML in this checkout."""
    spec = load_backend(name, ROOT, changes)
    assert isinstance(spec, StackKind)
    return spec


def commands_of(spec: StackSpec, home: Path) -> dict[str, list[str]]:
    """Returns instance -> words of its command. Ports are numbered, GPUs too, and paths in containers are those of the host."""
    ports = itertools.count(FIRST_PORT)
    instances = instances_of(spec, home, lambda: next(ports))
    share_out(instances, [str(gpu) for gpu in range(spec.gpus[0])])
    factory = Factory(spec, home, instances, dry_run=True)
    return {each.name: _on_this_machine(each, spec, home, factory.command(each)) for each in instances}


def _on_this_machine(instance: Instance, spec: StackSpec, home: Path, words: list[str]) -> list[str]:
    values = {"run_dir": str(home / "run"), "here": spec.here, "home": str(Path.home()), "logs": str(home)}
    for outside, inside in instance.spec.container.mounts.items():
        words = [word.replace(inside.partition(":")[0], expand(outside, values, instance.service)) for word in words]
    return [*(instance.spec.container.entrypoint or []), *words]
