"""Reads YAML files and converts them to pydantic models. Each error message names the file, the key, and which values are valid."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat, ValidationError

from pytest_agentbench.errors import ConfigError, unknown_key
from pytest_agentbench.lib.json_text import read_text
from pytest_agentbench.lib.options import LoginUrl, seconds

if TYPE_CHECKING:
    import yaml
    from pydantic_core import ErrorDetails


class Spec(BaseModel):
    """The base class of the pydantic models of YAML files. Models are frozen, and unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Model = TypeVar("Model", bound=BaseModel)


def _seconds(value: Any) -> Any:
    """Converts a text such as `10m` to seconds. Returns other values unchanged, because pydantic checks their type."""
    if not isinstance(value, str):
        return value
    try:
        return seconds(value)
    except ValueError as error:
        raise ValueError("must be a time such as 200ms, 90s, 10m or 2h, or a number of seconds") from error


#: A duration: a number of seconds, or a text such as `90s`, `10m` or `2h`. The value of the field is in seconds.
Seconds = Annotated[FiniteFloat, Field(ge=0), BeforeValidator(_seconds, json_schema_input_type=Annotated[float, Field(ge=0)] | str)]
PositiveSeconds = Annotated[FiniteFloat, Field(gt=0), BeforeValidator(_seconds, json_schema_input_type=Annotated[float, Field(gt=0)] | str)]

_MEANINGS: dict[str, str] = {}  # regular expression of a field -> what its texts are, in words


def matching(pattern: str, meaning: str) -> Any:
    """Returns a pydantic field for a text that must match a regular expression. `meaning` follows "must be" in error messages."""
    _MEANINGS[pattern] = meaning
    return Field(pattern=pattern)


def load_yaml(file: Path) -> dict[str, Any]:
    """Reads a YAML file that contains a mapping. Raises ConfigError with the line of the error."""
    data = parse_yaml(read_text(file), str(file))
    if not isinstance(data, dict):
        raise ConfigError(f"{file}: is {type(data).__name__ if data is not None else 'empty'}, must be a mapping of keys")
    return data


def parse_yaml(text: str, where: str) -> Any:
    """Parses a YAML text. Raises ConfigError with `where` and the line of the error, also if a key occurs twice."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader is faster
    try:
        _refuse_repeated_keys(yaml.compose(text, loader), where)
        return yaml.load(text, loader)  # noqa: S506
    except yaml.MarkedYAMLError as error:
        line, problem = _yaml_problem(text, error)
        raise ConfigError(f"{where}:{line}: not valid YAML: {problem}") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: 2024-13-45 looks like a date, but is not one
        raise ConfigError(f"{where}: not valid YAML: {' '.join(str(error).split())}") from error


#: The parser's words -> what to do, for mistakes that are in the line where the parser began to read what it did not understand.
_BEGUN_THERE = {
    "could not find expected ':'": "write `key: value`, with a space after the colon",
    "found unexpected end of stream": "close the quote that begins here",
}

#: The parser's words -> what to do, for mistakes that are in the line where the parser stopped.
_STOPPED_THERE = {
    "did not find expected key": "indent the keys of a mapping alike, and put a text with a quote in it in quotes of the other kind",
    "mapping values are not allowed in this context": "put a text that contains a colon in quotes, and indent the keys of a mapping alike",
}


def _yaml_problem(text: str, error: yaml.MarkedYAMLError) -> tuple[int, str]:
    """Returns the line of a syntax error of YAML, and the parser's words with what to do."""
    problem = error.problem or ""
    if (mark := (error.context_mark if problem in _BEGUN_THERE else None) or error.problem_mark) is None:
        return 1, problem
    first = "".join(text.splitlines()[mark.line : mark.line + 1])[mark.column : mark.column + 1]
    if "tab character" in problem or (first == "\t" and "cannot start any token" in problem):
        return mark.line + 1, "the line is indented with a tab; use spaces"
    if first and "cannot start any token" in problem:
        return mark.line + 1, f"a text cannot begin with {first!r}; put it in quotes"
    advice = (_BEGUN_THERE | _STOPPED_THERE).get(problem)
    return mark.line + 1, f"{problem}{f'; {advice}' if advice else ''}"


def _refuse_repeated_keys(tree: yaml.Node | None, where: str) -> None:
    """Raises ConfigError if a mapping contains a key twice, because PyYAML would silently use the last. Keys from `<<` do not count."""
    from yaml import MappingNode, ScalarNode, SequenceNode

    nodes, visited = [tree] if tree else [], set[int]()
    while nodes:
        node = nodes.pop()
        if id(node) in visited:  # an alias leads to a node that was visited, possibly to one around it
            continue
        visited.add(id(node))
        if isinstance(node, SequenceNode):
            nodes.extend(node.value)
        elif isinstance(node, MappingNode):
            scalars = [key for key, _ in node.value if isinstance(key, ScalarNode)]
            first = {(key.tag, key.value): key for key in reversed(scalars)}
            for key in scalars:
                if key is not (other := first[key.tag, key.value]):
                    line, earlier = key.start_mark.line + 1, other.start_mark.line + 1
                    raise ConfigError(f"{where}:{line}: the key {key.value!r} occurs twice, first in line {earlier}; keep one of them")
            nodes += [part for pair in node.value for part in pair]


def base_url(text: str) -> str:
    """Returns the address of a server without a final slash. Raises ValueError for a text that is not such an address."""
    if not text.startswith(("http://", "https://")):
        raise ValueError("must start with http:// or https://")
    if LoginUrl(text) != text:
        raise ValueError("must not contain a user or password, which are only read from the `url` of a backend of kind url")
    return text.rstrip("/")


def override(data: dict[str, Any], changes: Sequence[tuple[str, Any]], where: str) -> dict[str, Any]:
    """Copies `data` with values at dotted paths replaced. Raises ConfigError if a path leads through something other than a mapping."""
    for path, value in changes:
        data = _replaced(data, path.split("."), value, f"{where}: --agentbench-set {path}")
    return data


def _replaced(data: Any, path: list[str], value: Any, where: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: {path[0]!r} cannot be set inside {_shown(data)!r}, which is not a mapping; correct the path")
    name, *rest = path
    return {**data, name: _replaced(data.get(name) or {}, rest, value, where) if rest else value}


def validate(model: type[Model], data: Any, where: str) -> Model:
    """Converts `data` to an instance of the model.

    Raises ConfigError with a line for each wrong key. A line names the file and the key, and for an unknown key the known ones.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError("\n".join(f"{where}: {_sentence(model, fault)}" for fault in _telling(error))) from error


def _telling(error: ValidationError) -> list[ErrorDetails]:
    """Returns the first of pydantic's errors for each top-level key, unknown keys first.

    Missing keys beside an unknown one are left out, because a misspelt key explains why another one is missing.
    """
    faults = sorted(error.errors(include_url=False), key=lambda fault: fault["type"] != "extra_forbidden")
    unknown = {fault["loc"][:-1] for fault in faults if fault["type"] == "extra_forbidden"}
    telling = [fault for fault in faults if fault["type"] != "missing" or fault["loc"][:-1] not in unknown]
    return [*{fault["loc"][:1]: fault for fault in reversed(telling)}.values()][::-1]


def _sentence(model: type[BaseModel], fault: ErrorDetails) -> str:
    path = [str(part) for part in fault["loc"]]
    key = ".".join(part for part in path if part != "[key]")  # pydantic adds `[key]` if the name of an entry is wrong
    if fault["type"] == "extra_forbidden":
        return unknown_key(key, _model_at(model, path[:-1]).model_fields)
    if fault["type"] == "missing":
        return f"the key {key!r} is missing"
    value = _shown(fault["input"])
    given = "" if isinstance(value, dict) and fault["type"] == "value_error" else f", not {value!r}"  # the value is a whole model
    given = given if value is not None else ", and is empty"
    return f"{f'{key}: ' if key else ''}{_requirement(fault)}{_example(model, path, fault)}{given}"


def _example(model: type[BaseModel], path: list[str], fault: ErrorDetails) -> str:
    """Returns `, such as EXAMPLE` for a key that has an example, if its value has a wrong type."""
    fields = _model_at(model, path[:-1]).model_fields
    examples = fields[path[-1]].examples if path and path[-1] in fields else None
    return f", such as {examples[0]}" if examples and fault["type"].endswith("_type") else ""


def _requirement(fault: ErrorDetails) -> str:
    """Returns the requirement that a value does not meet, to follow its key in an error message."""
    if fault["type"] == "string_pattern_mismatch":
        pattern = fault["ctx"]["pattern"]
        return f"must be {_MEANINGS.get(pattern, f'a text that matches {pattern}')}"
    if words := next((words for start, words in _TYPES.items() if fault["type"].startswith(start)), None):
        return f"must be {words}"
    message = fault["msg"].removeprefix("Value error, ")
    return _uncapitalised(re.sub(r"^(Input|String|List|Dictionary|Tuple|Value) should ", "must ", message))


#: Beginning of pydantic's type of a fault -> the type in words
_TYPES = {
    "dict_type": "a mapping of keys",
    "model_type": "a mapping of keys",
    "list_type": "a list",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "string_type": "a text",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
}


def _shown(value: Any) -> Any:
    """Returns a value for an error message, without the user and the password of a URL."""
    return LoginUrl(value) if isinstance(value, str) else value


def _uncapitalised(message: str) -> str:
    """Returns a message with a small first letter, for the middle of a sentence. Abbreviations such as `GPUs` stay unchanged."""
    return message if message[1:2].isupper() else message[:1].lower() + message[1:]


def _model_at(model: type[BaseModel], path: list[str]) -> type[BaseModel]:
    """Returns the model class at a path of keys. Keys of mappings, which are chosen by the user, are skipped."""
    for name in path:
        if name not in model.model_fields:
            continue
        annotation = model.model_fields[name].annotation
        inner = [
            each for each in (annotation, *getattr(annotation, "__args__", ())) if isinstance(each, type) and issubclass(each, BaseModel)
        ]
        model = inner[0] if inner else model
    return model
