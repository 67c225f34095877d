"""Services that a stack takes from other YAMLs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.config import load_yaml


def with_included(data: dict[str, Any], file: Path) -> dict[str, Any]:
    """A stack with the services of the YAMLs that it includes before its own; raises ConfigError for a service that is there twice."""
    services: dict[str, Any] = {}
    names = data.pop("include", [])
    for name in [names] if isinstance(names, str) else names:
        other = load_yaml(file.parent / str(name))
        if unknown := [key for key in other if key not in ("services", "include", "note")]:
            raise ConfigError(f"{file.parent / str(name)}: {unknown[0]!r} cannot be in a file that others include; only services can")
        services = _joined(services, with_included(other, file.parent / str(name))["services"], file)
    return {**data, "services": _joined(services, data.get("services") or {}, file)}


def _joined(services: dict[str, Any], more: dict[str, Any], file: Path) -> dict[str, Any]:
    if twice := sorted(services.keys() & more.keys()):
        raise ConfigError(f"{file}: the service {twice[0]!r} is there twice, here or in what is included")
    return {**services, **more}
