"""Reads the Berkeley Function Calling Leaderboard from the files of the package `bfcl-eval`, without importing its code.

Ids, tool names and texts are not changed. Schemas become JSON schemas, and possible answers become labels; see `docs/benchmarks/bfcl.md`.
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
from pytest_agentbench.lib.json_text import read_text
from pytest_agentbench.records import Json
from pytest_agentbench.suites.datasets.loaded_scenarios import PackagedData
from pytest_agentbench.suites.suite import Scenario, Tool

PACKAGE, VERSION, SIZE = "bfcl-eval", "2026.3.23", "2 MB"
SHA256 = "4d7538d8f5e3b0261823c96578567c245b0f947b368601aaa379a66873cc7e2a"

SINGLE_TURN = (
    *("simple_python", "multiple", "parallel", "parallel_multiple", "irrelevance"),
    *("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple", "live_irrelevance"),
)
MULTI_TURN = "multi_turn_base"
CATEGORIES = (*SINGLE_TURN, MULTI_TURN)

#: Type of the package -> JSON type. `array` stands for two types of the package, so a tuple is marked in `$comment`.
TYPES: Mapping[str, str] = {"dict": "object", "float": "number", "tuple": "array"}
TUPLE = "tuple"
ANYTHING = "any"  # type of the package that becomes a JSON schema without a type

#: Class in a conversation -> file with its tools, in `multi_turn_func_doc`.
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
    """Returns all scenarios of the installed package, category by category.

    Raises:
        MissingData: The package is not installed, or another version of it. The message has the command that installs it.
        ConfigError: The files of the package were changed.
    """
    folder = data_folder()
    files = [*_files(folder)]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    if digest.hexdigest() != SHA256:
        raise ConfigError(f"{folder}: is not the data of {PACKAGE} {VERSION}; restore it with {_install('--force-reinstall ')}")
    return PackagedData(PACKAGE, VERSION, SHA256, tuple(_scenarios(folder)))


def data_folder() -> Path:
    """Returns the data folder of the installed package. Raises MissingData if it is not installed in the right version."""
    try:
        package = distribution(PACKAGE)
    except PackageNotFoundError:
        raise MissingData(
            f"the data set is not installed; install it with {_install()} ({SIZE}, without the package's many dependencies)"
        ) from None
    if package.version != VERSION:
        raise MissingData(f"{PACKAGE} {package.version} is installed, but this suite needs {VERSION}; install it with {_install()}")
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
    """Returns whether the scenarios of a category expect tool calls."""
    return "irrelevance" not in category


def lines(file: Path) -> list[Json]:
    """Returns the JSON objects of a file with one object per line."""
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
    """Converts descriptions of tools in the package `bfcl-eval` to Tools. Equal tools and sets of tools become one object."""

    def __init__(self, folder: Path) -> None:
        self._single: dict[str, Tool] = {}
        self._sets: dict[str, tuple[Tool, ...]] = {}
        self._classes = {name: lines(folder / "multi_turn_func_doc" / f"{file}.json") for name, file in TOOL_FILES.items()}

    def of_classes(self, entry: Json) -> list[Json]:
        """Returns the descriptions of the tools of a conversation, an entry of the data with several messages of the user.

        They are the functions of the classes that the entry names, without those that it excludes.
        """
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
    """Converts the schema of a tool or parameter in the package `bfcl-eval` to a JSON Schema. `package_schema` converts it back."""
    converted = _map_subschemas(schema, json_schema)
    kind = converted.pop("type", None)
    if kind == ANYTHING:
        return converted
    return {"type": TYPES.get(kind, kind), **({"$comment": TUPLE} if kind == TUPLE else {}), **converted}


def package_schema(schema: Json) -> Json:
    """Converts a JSON Schema that `json_schema` returned back to the form that schemas have in the package `bfcl-eval`."""
    original = _map_subschemas(schema, package_schema)
    kind = original.pop("type", ANYTHING)
    if original.pop("$comment", "") == TUPLE:
        kind = TUPLE
    kinds = {json_type: package_type for package_type, json_type in TYPES.items() if package_type != TUPLE}
    return {"type": kinds.get(kind, kind), **original}


def _map_subschemas(schema: Json, change: Any) -> Json:
    """Returns a copy of a schema, with `change` applied to the schemas of its properties and items."""
    inner: Json = {}
    if "properties" in schema:
        inner["properties"] = {name: change(field) for name, field in schema["properties"].items()}
    if "items" in schema:
        inner["items"] = change(schema["items"])
    return {**schema, **inner}


def label(call: Json, docs: list[Json]) -> Json:
    """Converts an expected call `{tool: {argument: [right values]}}` to a label, the form in
    which scorers compare calls: `{tool, accepts, optional}`. `docs` are the package's descriptions of the tools.

    If "" is one of the values, the argument may be left out.
    """
    ((tool, arguments),) = call.items()
    schema = next(doc["parameters"] for doc in docs if doc["name"] == tool)
    properties, required = schema["properties"], schema.get("required", ())
    pattern = _pattern(arguments, properties)
    accepts = {name: [_value(each, properties.get(name, {})) for each in values] for name, values in pattern["accepts"].items()}
    return {"tool": tool, "accepts": accepts, "optional": [name for name in pattern["optional"] if name not in required]}


def _pattern(fields: Json, properties: Json) -> Json:
    """Converts field -> right values to `{accepts, optional}`. `properties` are the schemas of the fields.

    The value "" means that a field is optional. It is also an accepted value if the field is a text.
    """
    texts = {name for name in fields if properties.get(name, {}).get("type", "string") in ("string", ANYTHING)}
    return {
        "accepts": {name: [each for each in values if each != "" or name in texts] for name, values in fields.items()},
        "optional": [name for name, values in fields.items() if "" in values],
    }


def _value(value: Any, schema: Json) -> Any:
    """Converts a right value of an argument to the form that labels have: an object becomes `{accepts, optional}`, others stay.

    The package lists several right values for each field of an object, and of objects in a list, but one for more deeply nested fields.
    """
    if isinstance(value, dict):
        return _pattern(value, schema.get("properties", {}))
    if isinstance(value, list):
        return [_value(each, schema.get("items", {})) if isinstance(each, dict) else each for each in value]
    return value


def _turns(truth: list[list[str]], docs: list[Json]) -> Iterator[Json]:
    """Yields the label of each expected call of a conversation: `{tool, parameters, turn}`, where `turn` counts user messages from 1.

    `truth` has a list of calls for each user message, as Python source. `docs` are the package's descriptions of the tools.
    """
    orders = {doc["name"]: [*doc["parameters"]["properties"]] for doc in docs}
    for turn, calls in enumerate(truth, 1):
        for text in calls:
            tool, arguments = python_call(text, orders)
            yield {"tool": tool, "parameters": arguments, "turn": turn}


def python_call(text: str, orders: Mapping[str, list[str]]) -> tuple[str, Json]:
    """Parses a call such as `cp('a', destination='b')` and returns (tool, arguments). `orders` is tool -> argument names in order."""
    call = ast.parse(text, mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ConfigError(f"the expected call {text!r} is not of the form `cp('a', destination='b')`")
    tool = call.func.id
    positional = zip(orders[tool], call.args, strict=False)
    named = ((str(keyword.arg), keyword.value) for keyword in call.keywords)
    return tool, {name: ast.literal_eval(value) for name, value in (*positional, *named)}
