"""Interpreters, commands and secrets of a stack's services."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from pytest_agentbench.backends.doctor.check import Check, missing, ok
from pytest_agentbench.backends.machine.environments import resolve_python
from pytest_agentbench.backends.stack.spec import TEMPLATE, StackSpec
from pytest_agentbench.errors import AgentbenchError


def secret_checks(spec: StackSpec) -> Iterator[Check]:
    for name in dict.fromkeys(name for service in spec.services.values() for name in service.secrets):
        if os.environ.get(name):
            yield ok("secret", f"{name} is set")
        else:
            yield missing("secret", f"{name} is not set", f"export {name}=...")


def program_checks(spec: StackSpec) -> Iterator[Check]:
    """Of services that are processes, each interpreter and each command once."""
    programs = dict.fromkeys((service.python or spec.python, service.run[0]) for service in spec.services.values() if service.image is None)
    pythons: dict[str | None, Path | None] = {None: None}
    for name in dict.fromkeys(python for python, _ in programs if python is not None):
        try:
            pythons[name] = resolve_python(name, Path(spec.here))
        except AgentbenchError as error:
            what, _, fix = str(error).partition(": agentbench")
            yield missing("python", what, f"agentbench{fix}" if fix else "correct `python`")
        else:
            yield ok("python", f"{name}: {pythons[name]}")
    for python, command in programs:
        if python in pythons and not TEMPLATE.search(command):
            yield _command(command, pythons[python])


def _command(command: str, python: Path | None) -> Check:
    """Looked for where the service will: beside its interpreter, then on the PATH."""
    path = os.pathsep.join([*([str(python.parent)] if python else []), os.environ.get("PATH", os.defpath)])
    if found := shutil.which(command, path=path):
        return ok("command", f"{command}: {found}")
    where = f"in {python.parent} or on the PATH" if python else "on the PATH"
    return missing("command", f"{command} is not {where}", "install it, or say `python:` for the environment that has it")
