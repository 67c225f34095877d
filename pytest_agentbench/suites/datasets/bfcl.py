"""The Berkeley Function Calling Leaderboard, read from the files of the package `bfcl-eval`, none of whose code is imported.

Ids, tool names and texts are the package's own. Its schemas become JSON schemas, its possible answers labels; `docs/bfcl.md` says how.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from pytest_agentbench.errors import ConfigError, MissingData
from pytest_agentbench.lib.json_file import read_text
from pytest_agentbench.records import Json
from pytest_agentbench.suites.datasets.selection import PackagedData
from pytest_agentbench.suites.suite import Scenario, Tool

PACKAGE, VERSION, SIZE = "bfcl-eval", "2026.3.23", "2 MB"
SHA256 = "4d7538d8f5e3b0261823c96578567c245b0f947b368601aaa379a66873cc7e2a"

SINGLE_TURN = (
    *("simple_python", "multiple", "parallel", "parallel_multiple", "irrelevance"),
    *("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple", "live_irrelevance"),
)
MULTI_TURN = "multi_turn_base"
CATEGORIES = (*SINGLE_TURN, MULTI_TURN)

#: Type of the package -> JSON type. Each JSON type comes from one of the package's, save `array`: what was a tuple says so in `$comment`.
TYPES: Mapping[str, str] = {"dict": "object", "float": "number", "tuple": "array"}
TUPLE = "tuple"
ANYTHING = "any"  # a JSON schema without a type

#: Class of a conversation -> file with its tools, in `multi_turn_func_doc`.
TOOL_FILES: Mapping[str, str] = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "TwitterAPI": "posting_api",
    "VehicleControlAPI": "vehicle_control",
}


def load() -> PackagedData:
    """All scenarios, category by category; raises MissingData with how to get them, ConfigError for files that were changed."""
    folder = data_folder()
    files = [*_files(folder)]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    if digest.hexdigest() != SHA256:
        raise ConfigError(f"{folder}: is not the data of {PACKAGE} {VERSION}; {_install('--force-reinstall ')} brings it back")
    return PackagedData(PACKAGE, VERSION, SHA256, tuple(_scenarios(folder)))


def data_folder() -> Path:
    """Where the installed package keeps its data."""
    try:
        package = distribution(PACKAGE)
    except PackageNotFoundError:
        raise MissingData(
            f"the data set is not installed: {_install()} brings it ({SIZE}, without the package's many dependencies)"
        ) from None
    if package.version != VERSION:
        raise MissingData(f"{PACKAGE} {package.version} is installed, and this suite is made for {VERSION}: {_install()}")
    return Path(str(package.locate_file("bfcl_eval"))) / "data"


def _install(option: str = "") -> str:
    return f"`pip install {option}--no-deps {PACKAGE}=={VERSION}`"


def _files(folder: Path) -> Iterator[Path]:
    for category in CATEGORIES:
        yield questions_file(folder, category)
        if has_answers(category):
            yield answers_file(folder, category)
    for name in TOOL_FILES.values():
        yield folder / "multi_turn_func_doc" / f"{name}.json"


def questions_file(folder: Path, category: str) -> Path:
    return folder / f"BFCL_v4_{category}.json"


def answers_file(folder: Path, category: str) -> Path:
    return folder / "possible_answer" / f"BFCL_v4_{category}.json"


def has_answers(category: str) -> bool:
    """Whether tools are to be called at all."""
    return "irrelevance" not in category


def lines(file: Path) -> list[Json]:
    """The JSON objects of a file that has one in each line."""
    return [json.loads(line) for line in read_text(file).split("\n") if line.strip()]


def _scenarios(folder: Path) -> Iterator[Scenario]:
    cache = _ToolCache(folder)
    for category in CATEGORIES:
        answers = lines(answers_file(folder, category)) if has_answers(category) else []
        truths = {answer["id"]: answer["ground_truth"] for answer in answers}
        for entry in lines(questions_file(folder, category)):
            docs = cache.of_classes(entry) if category == MULTI_TURN else entry["function"]
            tools = cache.tools(docs)
            truth = truths.get(entry["id"], [])
            first, *later = entry["question"]
            yield Scenario(
                id=entry["id"],
                messages=tuple(first),
                tools=tools,
                expected=tuple(_turns(truth, docs) if category == MULTI_TURN else (label(call, docs) for call in truth)),
                metadata={"category": category, "label_source": f"{PACKAGE} {VERSION}"},
                turns=tuple(map(tuple, later)),
            )


class _ToolCache:
    """Tools that were read already: equal ones are one object, so that thousands of scenarios stay small."""

    def __init__(self, folder: Path) -> None:
        self._single: dict[str, Tool] = {}
        self._sets: dict[str, tuple[Tool, ...]] = {}
        self._classes = {name: lines(folder / "multi_turn_func_doc" / f"{file}.json") for name, file in TOOL_FILES.items()}

    def of_classes(self, entry: Json) -> list[Json]:
        """The tools of a conversation, in the order of its classes."""
        excluded = entry.get("excluded_function", ())
        return [doc for name in entry["involved_classes"] for doc in self._classes[name] if doc["name"] not in excluded]

    def tools(self, docs: list[Json]) -> tuple[Tool, ...]:
        text = json.dumps(docs)
        if text not in self._sets:
            self._sets[text] = tuple(map(self._tool, docs))
        return self._sets[text]

    def _tool(self, doc: Json) -> Tool:
        text = json.dumps(doc)
        if text not in self._single:
            self._single[text] = Tool(
                doc["name"], doc["description"], json_schema(doc["parameters"]), json_schema(doc["response"]) if "response" in doc else {}
            )
        return self._single[text]


def json_schema(schema: Json) -> Json:
    """A schema of the package as a JSON schema, from which `package_schema` makes the original again."""
    converted = _map_subschemas(schema, json_schema)
    kind = converted.pop("type", None)
    if kind == ANYTHING:
        return converted
    return {"type": TYPES.get(kind, kind), **({"$comment": TUPLE} if kind == TUPLE else {}), **converted}


def package_schema(schema: Json) -> Json:
    """The package's own schema of a JSON schema that was made from it."""
    original = _map_subschemas(schema, package_schema)
    kind = original.pop("type", ANYTHING)
    if original.pop("$comment", "") == TUPLE:
        kind = TUPLE
    kinds = {json_type: package_type for package_type, json_type in TYPES.items() if package_type != TUPLE}
    return {"type": kinds.get(kind, kind), **original}


def _map_subschemas(schema: Json, change: Any) -> Json:
    """A copy of a schema with the schemas inside of it changed."""
    inner: Json = {}
    if "properties" in schema:
        inner["properties"] = {name: change(field) for name, field in schema["properties"].items()}
    if "items" in schema:
        inner["items"] = change(schema["items"])
    return {**schema, **inner}


def label(call: Json, docs: list[Json]) -> Json:
    """The label of an expected call `{tool: {argument: [values]}}`: where "" is a value, the argument may be left out."""
    ((tool, arguments),) = call.items()
    schema = next(doc["parameters"] for doc in docs if doc["name"] == tool)
    properties, required = schema["properties"], schema.get("required", ())
    pattern = _pattern(arguments, properties)
    accepts = {name: [_value(each, properties.get(name, {})) for each in values] for name, values in pattern["accepts"].items()}
    return {"tool": tool, "accepts": accepts, "optional": [name for name in pattern["optional"] if name not in required]}


def _pattern(fields: Json, properties: Json) -> Json:
    """What fields may be, and which may be left out. "" says the latter, and is a value as well where the field is a text."""
    texts = {name for name in fields if properties.get(name, {}).get("type", "string") in ("string", ANYTHING)}
    return {
        "accepts": {name: [each for each in values if each != "" or name in texts] for name, values in fields.items()},
        "optional": [name for name, values in fields.items() if "" in values],
    }


def _value(value: Any, schema: Json) -> Any:
    """One value that is right. The package lists alternatives for the fields of an object, and of objects in a list; no deeper."""
    if isinstance(value, dict):
        return _pattern(value, schema.get("properties", {}))
    if isinstance(value, list):
        return [_value(each, schema.get("items", {})) if isinstance(each, dict) else each for each in value]
    return value


def _turns(truth: list[list[str]], docs: list[Json]) -> Iterator[Json]:
    """The labels of a conversation: what is to be called after each message of the user, as Python would write it."""
    orders = {doc["name"]: [*doc["parameters"]["properties"]] for doc in docs}
    for turn, calls in enumerate(truth, 1):
        for text in calls:
            tool, arguments = python_call(text, orders)
            yield {"tool": tool, "parameters": arguments, "turn": turn}


def python_call(text: str, orders: Mapping[str, list[str]]) -> tuple[str, Json]:
    """(tool, arguments) of `cp('a', destination='b')`; `orders` are the names of each tool's arguments in order."""
    call = ast.parse(text, mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ConfigError(f"{text!r} is no call of a tool")
    tool = call.func.id
    positional = zip(orders[tool], call.args, strict=False)
    named = ((str(keyword.arg), keyword.value) for keyword in call.keywords)
    return tool, {name: ast.literal_eval(value) for name, value in (*positional, *named)}
