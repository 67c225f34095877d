"""The parameters of tools: derives tools from methods, and checks that tools have the parameters that the scenarios' data say."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from pytest_agentbench.errors import ConfigError, ToolError, unknown_name
from pytest_agentbench.records import Json
from pytest_agentbench.suites.suite import Scenario, Tool, toolsets

POSSIBLE = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class Method:
    """A method of a suite's class that is a tool, because it is public and has a docstring."""

    tool: Tool  # tool that its signature and docstring describe
    required: tuple[str, ...]
    optional: tuple[str, ...]
    parameters: type[BaseModel]

    @property
    def signature(self) -> str:
        return signature_text(self.required, self.optional)

    def arguments(self, given: Json) -> Json:
        """Converts the arguments of a model's call to the types that the method declares. Raises ToolError if that is not possible."""
        try:
            parsed = self.parameters.model_validate(given)
        except ValidationError as error:
            faults = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
            raise ToolError(f"{self.tool.name} cannot take these arguments: {faults}") from None
        return {name: getattr(parsed, name) for name in given if name in type(parsed).model_fields}


def signature_text(required: tuple[str, ...], optional: tuple[str, ...]) -> str:
    """Formats the names of parameters for a sentence: `(item, count=...)`."""
    return f"({', '.join([*required, *(f'{name}=...' for name in optional)])})"


def methods_of(cls: type) -> Mapping[str, Method]:
    """Returns the tools of a class: its public methods with a docstring.

    Raises ConfigError if there are none, or if models cannot call one of them.
    """
    methods = {name: _method(cls, name, function) for name, function in _documented(cls)}
    if not methods:
        raise ConfigError(f"{cls.__name__} has no tools; give each public method that is a tool a docstring")
    return methods


def _documented(cls: type) -> Iterator[tuple[str, Callable[..., object]]]:
    for name, function in inspect.getmembers(cls, inspect.isfunction):
        if not name.startswith("_") and inspect.getdoc(function):
            yield name, function


def _method(cls: type, name: str, function: Callable[..., object]) -> Method:
    try:
        hints = get_type_hints(function, include_extras=True)
        parameters = [*inspect.signature(function).parameters.values()]
        if not isinstance(inspect.getattr_static(cls, name), staticmethod):
            _, *parameters = parameters
        if other := [each for each in parameters if each.kind not in POSSIBLE]:
            raise ConfigError(f"the tool {name!r} has a parameter that models cannot pass: {other[0]}; use one that is passed by name")
        fields: dict[str, Any] = {
            each.name: (hints.get(each.name, Any), ... if each.default is inspect.Parameter.empty else each.default) for each in parameters
        }
        model = create_model(name, __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=False), **fields)
        schema = _plain(model.model_json_schema())
    except ConfigError:
        raise
    except Exception as error:  # Annotations are code and may be anything.
        raise ConfigError(
            f"the parameters of the tool {name!r} cannot be described by a JSON Schema: {' '.join(str(error).split())}"
        ) from error
    required = tuple(each.name for each in parameters if each.default is inspect.Parameter.empty)
    optional = tuple(each.name for each in parameters if each.name not in required)
    return Method(Tool(name, inspect.getdoc(function) or "", {"required": [], **schema}), required, optional, model)


def _plain(schema: Any) -> Any:
    """Returns a JSON Schema without the titles that pydantic generates from names."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: {field: _plain(each) for field, each in value.items()} if name in ("properties", "$defs") else _plain(value)
        for name, value in schema.items()
        if name != "title"
    }


#: (required parameters, optional parameters) of a tool: their names in alphabetical order.
Parameters = tuple[tuple[str, ...], tuple[str, ...]]


def check_agreement(own: Mapping[str, Parameters], scenarios: Sequence[Scenario]) -> None:
    """Raises ConfigError if scenarios list or expect a tool that is not in `own`, or list one with other parameters than in `own`."""
    for tools in toolsets(scenarios):
        for tool in tools:
            _check_tool(own, tool)
    for scenario in scenarios:
        for label in scenario.expected:
            if str(label.get("tool")) not in own:
                raise ConfigError(f"{scenario.id}: an expected call: {unknown_name('tool', str(label.get('tool')), own)}")


def _check_tool(own: Mapping[str, Parameters], tool: Tool) -> None:
    if tool.name not in own:
        raise ConfigError(f"the data list a tool that does not exist: {unknown_name('tool', tool.name, own)}")
    if own[tool.name] != (data := parameters_of(tool)):
        takes = f"takes {signature_text(*own[tool.name])}, and in the data it takes {signature_text(*data)}"
        raise ConfigError(f"the tool {tool.name!r} {takes}; they should agree")


def parameters_of(tool: Tool) -> Parameters:
    """Returns the names of a tool's parameters according to its JSON Schema."""
    required = {*tool.parameters.get("required", ())}
    return tuple(sorted(required)), tuple(sorted({*tool.parameters.get("properties", ())} - required))
