"""From `tools` in a suite.yaml to tools that can be called. A new kind is a file here and a line in TOOL_KINDS."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_agentbench.errors import ConfigError, unknown_name
from pytest_agentbench.lib.import_path import load_object
from pytest_agentbench.records import Json
from pytest_agentbench.suites.suite import Scenario
from pytest_agentbench.tools.source import Tools, ToolsKind

#: Each a class with the keys of its YAML as fields.
TOOL_KINDS: Mapping[str, str] = {
    "decision_only": "pytest_agentbench.tools.source:DecisionOnly",
    "mcp": "pytest_agentbench.tools.mcp:McpTools",
    "python": "pytest_agentbench.tools.python:PythonTools",
}


def tool_kind(settings: Json) -> ToolsKind:
    """The kind of tools that settings describe; nothing of the suite is imported. Raises ConfigError that says what is wrong with them."""
    kind = settings.get("kind", "decision_only")
    if not isinstance(kind, str) or kind not in TOOL_KINDS:
        raise ConfigError(f"tools: {unknown_name('kind of tools', str(kind), TOOL_KINDS)}")
    made_by = load_object("kind of tools", kind, TOOL_KINDS, Path())
    known = [each.name for each in dataclasses.fields(made_by)]
    options = {name: value for name, value in settings.items() if name != "kind"}
    if unknown := [name for name in options if name not in known]:
        raise ConfigError(f"tools: unknown key {unknown[0]!r}; known keys of {kind}: {', '.join(('kind', *known))}")
    try:
        made: ToolsKind = made_by(**options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"tools: {' '.join(str(error).split())}") from error
    return made


def load_tools(settings: Json, folder: Path, scenarios: Sequence[Scenario]) -> Tools:
    """The tools of a suite in this folder, ready for use; raises ConfigError."""
    try:
        return tool_kind(settings).load(folder, scenarios)
    except ConfigError as error:
        raise ConfigError(f"tools: {str(error).removeprefix('tools: ')}") from error


def brings_code(settings: Json) -> bool:
    """Whether tools are the suite's own code."""
    return tool_kind(settings).own_code
