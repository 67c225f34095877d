"""What carries tools out has those that the data offer and expect, with the parameters that the data say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_agentbench.errors import ConfigError, unknown_name
from pytest_agentbench.suites.suite import Scenario, Tool, toolsets
from pytest_agentbench.tools.methods import written

#: Names of the required parameters of a tool, and of the others, each in the order of the alphabet.
Parameters = tuple[tuple[str, ...], tuple[str, ...]]


def check_agreement(own: Mapping[str, Parameters], scenarios: Sequence[Scenario]) -> None:
    """Raises ConfigError where the data have a tool that is not there or takes other parameters, or expect one that is not there."""
    for tools in toolsets(scenarios):
        for tool in tools:
            _check_tool(own, tool)
    for scenario in scenarios:
        for label in scenario.expected:
            if str(label.get("tool")) not in own:
                raise ConfigError(f"{scenario.id}: expected {unknown_name('tool', str(label.get('tool')), own)}")


def _check_tool(own: Mapping[str, Parameters], tool: Tool) -> None:
    if tool.name not in own:
        raise ConfigError(f"the data have {unknown_name('tool', tool.name, own).replace('no tool', 'a tool', 1)}")
    if own[tool.name] != (data := parameters_of(tool)):
        takes = f"takes {written(*own[tool.name])}, and in the data it takes {written(*data)}"
        raise ConfigError(f"the tool {tool.name!r} {takes}; they should agree")


def parameters_of(tool: Tool) -> Parameters:
    """Of a tool's schema."""
    required = {*tool.parameters.get("required", ())}
    return tuple(sorted(required)), tuple(sorted({*tool.parameters.get("properties", ())} - required))
