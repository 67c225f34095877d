"""How single arguments are compared with their labels, where suite.yaml says it: `arguments` of a tool."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_agentbench.errors import ConfigError, unknown_name
from pytest_agentbench.records import Json
from pytest_agentbench.suites.suite import Scenario, toolsets

#: Tool -> argument -> mode.
Modes = Mapping[str, Mapping[str, str]]


def with_modes(modes: Modes, scenarios: Sequence[Scenario]) -> tuple[Scenario, ...]:
    """The scenarios with labels that say how their arguments are compared.

    Raises ConfigError for a tool or an argument that there is not, and for a label of mode `pattern` that is no regular expression.
    """
    _check_names(modes, scenarios)
    return tuple(replace(each, expected=tuple(_label(label, modes, each.id) for label in each.expected)) for each in scenarios)


def _label(label: Json, modes: Modes, scenario: str) -> Json:
    own = modes.get(str(label["tool"]))
    if not own:
        return label
    for name in (name for name, mode in own.items() if mode == "pattern"):
        for value in _values(label, name):
            if not isinstance(value, str) or not _compiles(value):
                where = f"arguments.{label['tool']}.{name}: in scenario {scenario!r}"
                raise ConfigError(f"{where} the label is no regular expression: {value!r}")
    return {**label, "modes": dict(own)}


def _values(label: Json, name: str) -> list[Any]:
    """What a label accepts of an argument."""
    if "accepts" in label:
        return list(label["accepts"].get(name, ()))
    parameters = label.get("parameters") or {}
    return [parameters[name]] if name in parameters else []


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def _check_names(modes: Modes, scenarios: Sequence[Scenario]) -> None:
    known: dict[str, set[str]] = {}
    for tools in toolsets(scenarios):
        for tool in tools:
            known.setdefault(tool.name, set()).update(tool.parameters.get("properties") or ())
    for label in (label for each in scenarios for label in each.expected):
        names = {**(label.get("parameters") or {}), **(label.get("accepts") or {})}
        known.setdefault(str(label["tool"]), set()).update(names)
    for tool_name, own in modes.items():
        if tool_name not in known:
            raise ConfigError(f"arguments: {unknown_name('tool', tool_name, known)}")
        for name in own:
            if name not in known[tool_name]:
                raise ConfigError(f"arguments.{tool_name}: {unknown_name('argument', name, known[tool_name])}")
