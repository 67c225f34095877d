"""Starts node workers for a session: on this machine, or on machines that Ray, Slurm or Kubernetes provides. A file for each launcher.

A launcher is the value of `--agentbench-nodes`: its name, and after a colon its argument. Its settings are in the YAML of the backend, at
`nodes: {NAME: {...}}`. A package adds one with the entry-point group `pytest_agentbench.launchers`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pytest_agentbench.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from pytest_agentbench.launchers.launcher import Launcher

LOCAL = "local"
RAY = "ray"
ENTRY_POINTS = "pytest_agentbench.launchers"

#: Name of a built-in launcher -> its class
LAUNCHERS: Mapping[str, str] = {
    LOCAL: "pytest_agentbench.launchers.local:Local",
    RAY: "pytest_agentbench.launchers.ray:Ray",
    "kubernetes": "pytest_agentbench.launchers.kubernetes:Kubernetes",
    "slurm": "pytest_agentbench.launchers.slurm:Slurm",
}


def launcher_name(text: str) -> str:
    """Returns the name in a value of `--agentbench-nodes`. Raises ValueError with the known names if there is no such launcher."""
    name = text.partition(":")[0]
    known = [*LAUNCHERS, *(each.name for each in _entry_points())] if name not in LAUNCHERS else [name]
    if name not in known:
        raise ValueError(f"the name of a launcher ({', '.join(known)}), such as local:2{did_you_mean(name, known)}")
    return name


def checked_launcher(text: str) -> str:
    """Returns the value of `--agentbench-nodes` if its launcher exists. Raises ValueError as `launcher_name` does."""
    launcher_name(text)
    return text


def make_launcher(text: str, settings: Mapping[str, Any], where: str) -> Launcher:
    """Returns a new launcher that has started nothing.

    Args:
        text: The value of `--agentbench-nodes`, which `checked_launcher` accepts.
        settings: The key `nodes` of the backend's YAML: name of a launcher -> its settings.
        where: The YAML that has the settings, for error messages.

    Raises:
        ConfigError: The argument or the settings are wrong, or a package that the launcher needs is not installed.
    """
    from pytest_agentbench.lib.config import validate

    name, _, argument = text.partition(":")
    kind = _load(name)
    return kind(argument, validate(kind.settings_class, settings.get(name, {}), f"{where}: nodes.{name}"))


def _load(name: str) -> type[Launcher]:
    if name in LAUNCHERS:
        builtin: type[Launcher] = pkgutil.resolve_name(LAUNCHERS[name])
        return builtin
    entry = next(each for each in _entry_points() if each.name == name)
    try:
        kind: type[Launcher] = entry.load()
    except Exception as error:  # Code of a plugin may raise anything.
        raise ConfigError(
            f"the launcher {name!r}, an entry point of {ENTRY_POINTS}, cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    return kind


def _entry_points() -> list[EntryPoint]:
    from importlib.metadata import entry_points

    return [*entry_points(group=ENTRY_POINTS)]
