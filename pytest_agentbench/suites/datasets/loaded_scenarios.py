"""What a data format returns: scenarios, or Selection if it left out entries, or PackagedData of a package; and checks of scenarios."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from pytest_agentbench.errors import ConfigError, unknown_name
from pytest_agentbench.lib import codec, json_text
from pytest_agentbench.suites.suite import Scenario, Tool


@dataclass(frozen=True)
class Selection:
    """The scenarios of a data file, and the numbers of entries that the format left out on purpose."""

    scenarios: tuple[Scenario, ...]
    left_out: Mapping[str, int]  # kind of entries, a plural noun -> number


@dataclass(frozen=True)
class PackagedData:
    """The scenarios of an installed package. Its format has compared the files with a known hash, so the scenarios
    need no further checks.
    """

    package: str
    version: str
    sha256: str  # hash of all files that were read, in their order
    scenarios: tuple[Scenario, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)  # kind of entries, a plural noun -> number


#: Fields of a scenario that are tuples -> type of their items.
TUPLES = {"messages": dict, "tools": Tool, "expected": dict, "turns": tuple}


def check_scenarios(scenarios: Iterable[Any], file: Path, *, without_tools: bool = False) -> None:
    """Raises ConfigError if there are no scenarios, an id is not unique, a schema is invalid, or a label names an unknown tool.

    With `without_tools`, the labels of scenarios without tools are not checked here, because their tools are known only later.
    """
    seen: set[str] = set()
    checked: dict[int, set[str]] = {}
    sound: set[int] = set()
    for scenario in scenarios:
        _check_record(scenario, file)
        if scenario.id in seen:
            raise ConfigError(f"{file}: the id {scenario.id!r} is there twice; ids name tests and must be unique")
        seen.add(scenario.id)
        if id(scenario.tools) not in checked:
            for tool in scenario.tools:
                if id(tool) not in sound:
                    _check_schema(tool, file)
                    sound.add(id(tool))
            checked[id(scenario.tools)] = {tool.name for tool in scenario.tools}
        names = checked[id(scenario.tools)]
        for call in scenario.expected if scenario.tools or not without_tools else ():
            if call.get("tool") not in names:
                raise ConfigError(f"{file}: {scenario.id}: an expected call: {unknown_name('tool', str(call.get('tool')), names)}")
    if not seen:
        raise ConfigError(f"{file}: contains no scenarios; add at least one")


def check_json(scenarios: Iterable[Scenario], file: Path) -> None:
    """Raises ConfigError if a scenario cannot be sent to other processes as JSON, for example because a key in its metadata is a tuple."""
    for scenario in scenarios:
        try:
            text = json_text.dumps_any(codec.plain(scenario))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{file}: scenario {scenario.id} must contain only values that JSON has: {error}") from error
        try:
            codec.received(Scenario, json_text.loads(text))
        except ValueError as error:
            raise ConfigError(f"{file}: {scenario.id}: {error}") from error


def _check_record(scenario: Any, file: Path) -> None:
    """Raises ConfigError if an object that a suite's own format returned is not a valid scenario."""
    if not isinstance(scenario, Scenario):
        raise ConfigError(f"{file}: the dataset format must return objects of the class Scenario, not {type(scenario).__name__}")
    if not isinstance(scenario.id, str) or not scenario.id:
        raise ConfigError(f"{file}: the id of a scenario must be a text that is not empty, not {scenario.id!r}")
    for name, kind in TUPLES.items():
        value = getattr(scenario, name)
        if not isinstance(value, tuple) or not all(isinstance(each, kind) for each in value):
            raise ConfigError(f"{file}: {scenario.id}: {name} must be a tuple of {kind.__name__}, not {str(value)[:80]}")
    if not scenario.messages:
        raise ConfigError(f"{file}: {scenario.id}: messages must contain at least one message")


def _check_schema(tool: Tool, file: Path) -> None:
    import fastjsonschema

    try:
        fastjsonschema.compile(tool.parameters, handlers=dict.fromkeys(("http", "https", "ftp", "file"), _refuse), use_default=False)
    except Exception as error:  # For an invalid schema, the library raises its own errors, KeyError, TypeError or re.error.
        raise ConfigError(f"{file}: the parameters of tool {tool.name!r} are not a valid JSON schema: {error}") from error


def _refuse(uri: str) -> NoReturn:
    """Raises ValueError for a `$ref` to another document, so that reading a data set never fetches anything."""
    raise ValueError(f"a `$ref` leads to another document, {uri}; copy that schema into this one")
