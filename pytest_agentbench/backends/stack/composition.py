"""Stacks whose YAML takes keys from other YAMLs: services from those that it includes, and all keys from its base."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pytest_agentbench.backends.stack.spec import RESERVED
from pytest_agentbench.backends.stack.templates import TEMPLATE
from pytest_agentbench.errors import ConfigError, did_you_mean
from pytest_agentbench.lib.config import load_yaml
from pytest_agentbench.lib.file_system import shipped

RELATIVE = frozenset({"cwd", "manifest", "table"})  # keys of a service or of labels whose value is relative to the folder of the YAML


def with_included(data: dict[str, Any], file: Path) -> dict[str, Any]:
    """Returns the keys of a stack's YAML, with the services of included YAMLs before its own.

    An included YAML is relative to the folder of `file`, or to that of the stacks that come with agentbench. `{here}` and relative paths
    in it lead to that folder. Raises ConfigError if it does not exist or has other keys, or if two services have the same name.
    """
    services: dict[str, Any] = {}
    names = data.pop("include", [])
    for name in [names] if isinstance(names, str) else names:
        folder, included = _included_file(str(name), file)
        other = load_yaml(included)
        if unknown := [key for key in other if key not in ("services", "include", "note")]:
            raise ConfigError(f"{included}: {unknown[0]!r} cannot be in a file that others include; only services can")
        found = with_included(other, included)["services"]
        services = _merged(services, found if folder == file.parent else _from_elsewhere(found, os.path.relpath(folder, file.parent)), file)
    return {**data, "services": _merged(services, with_on(data.get("services") or {}), file)}


def _included_file(name: str, file: Path) -> tuple[Path, Path]:
    """Returns an included YAML, after the folder that its name is relative to."""
    for folder in (file.parent, shipped("backends")):
        if (included := folder / name).is_file():
            return folder, included
    raise ConfigError(f"{file}: include: {name} is neither a YAML in {file.parent} nor one that comes with agentbench")


def with_base(data: dict[str, Any], file: Path, derived: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Returns the keys of a stack's YAML on top of those of its `base`, and with the services of all included YAMLs.

    Mappings are merged key by key, any other value replaces that of the base, and a key without a value is removed. Files that the base
    includes, and `{here}` and relative paths in it, stay those of its folder. Services that `data` includes come before those of the base,
    so that the last one, which is the endpoint by default, stays the same. `derived` are the files that led to this one. Raises
    ConfigError if the base does not exist or leads back to a file, or if a setting has no use.
    """
    name, own = data.pop("base", None), data.get("services") or {}
    data = with_included(data, file)
    if name is None:
        refuse_unused_settings({}, data, f"{file}: ")
        return data
    other = _base_file(str(name), file)
    if other.resolve() in (seen := (*derived, file.resolve())):
        raise ConfigError(f"{file}: base: {name} leads back to {other.name}; a file cannot be based on itself")
    base = with_base({**load_yaml(other)}, other, seen)
    if (way := os.path.relpath(other.parent, file.parent)) != os.curdir:
        base = _from_elsewhere(base, way)
    merged: dict[str, Any] = _on_top(base, data)
    refuse_unused_settings(base, merged, f"{file}: ")
    included = [each for each in data["services"] if each not in own and each not in base["services"]]
    return {**merged, "services": {**{each: merged["services"][each] for each in included}, **merged["services"]}}


def refuse_unused_settings(before: dict[str, Any], data: dict[str, Any], where: str = "") -> None:
    """Raises ConfigError for a setting that a change has added and that no template uses, such as a misspelt one.

    `before` are the keys of a stack before the change, and `data` are those after it. Settings in both are not refused, because the change
    may have replaced the service that used them. Manifests of Kubernetes can use any setting, so none is refused beside them.
    A reserved name is refused when the YAML is validated.
    """
    settings, services = _mapping(data, "settings").keys(), _mapping(data, "services")
    if any(_mapping(services, name).get("kubernetes") for name in services):
        return
    used = settings & set(TEMPLATE.findall(str({**data, "settings": None})))
    for name in sorted(settings - used - RESERVED - _mapping(before, "settings").keys()):
        raise ConfigError(
            f"{where}settings.{name}{did_you_mean(name, sorted(used))}: no service has the template {{{name}}}, so it changes nothing; "
            f"settings with a template: {', '.join(sorted(used)) or 'none'}"
        )


def _mapping(data: dict[str, Any], key: str) -> dict[str, Any]:
    """Returns a mapping of a YAML that is not validated yet. It is empty if the key is missing or has another value."""
    return value if isinstance(value := data.get(key), dict) else {}


def _base_file(name: str, file: Path) -> Path:
    """Returns the YAML of a base. A backend's name never means `file` itself, so that a project's `dynamo` can be based on ours."""
    is_path = name.endswith((".yaml", ".yml"))
    found = [file.parent / name] if is_path else [folder / f"{name}.yaml" for folder in (file.parent, shipped("backends"))]
    for each in found:
        if each.is_file() and (is_path or not each.samefile(file)):
            return each
    raise ConfigError(f"{file}: base: {name} is neither a YAML in {file.parent} nor a stack that comes with agentbench")


def _from_elsewhere(value: Any, way: str, key: str = "") -> Any:
    """Returns a copy of keys of a YAML in another folder, in which `{here}` and relative files lead there. `way` is the path to it."""
    if isinstance(value, dict):
        return {_from_elsewhere(name, way): _from_elsewhere(each, way, name) for name, each in value.items()}
    if isinstance(value, list):
        return [_from_elsewhere(each, way) for each in value]
    if not isinstance(value, str):
        return value
    return f"{way}/{value}" if key in RELATIVE and not value.startswith(("/", "{")) else value.replace("{here}", f"{{here}}/{way}")


def _on_top(base: Any, own: Any) -> Any:
    """Returns `base` changed by `own`, as a JSON Merge Patch (RFC 7396) would: a key without a value is removed."""
    if not isinstance(base, dict) or not isinstance(own, dict):
        return own
    merged = {**base, **{key: _on_top(base.get(key), value) for key, value in own.items()}}
    return {key: value for key, value in merged.items() if key not in own or own[key] is not None}


def with_on(services: Any) -> Any:
    """Returns services with the key `on`. A YAML parser reads the key `on` as true."""
    if not isinstance(services, dict):
        return services
    return {
        name: {"on" if key is True else key: value for key, value in service.items()} if isinstance(service, dict) else service
        for name, service in services.items()
    }


def _merged(services: dict[str, Any], more: dict[str, Any], file: Path) -> dict[str, Any]:
    if twice := sorted(services.keys() & more.keys()):
        raise ConfigError(f"{file}: the service {twice[0]!r} is defined twice, here or in an included file; rename one")
    return {**services, **more}
