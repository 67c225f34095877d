"""Builds JSON Schemas of suite.yaml and of backend YAMLs from pydantic models and from the field comments of option dataclasses."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Annotated, Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from pytest_agentbench.agents import AGENTS, Agent, load_agent
from pytest_agentbench.agents.factory import PARAMETERS, UPGRADE
from pytest_agentbench.agents.run import TruncationRetry
from pytest_agentbench.agents.terminal import Terminal
from pytest_agentbench.backends.spec import KINDS, BackendKeys
from pytest_agentbench.backends.stack.kind import StackKind
from pytest_agentbench.backends.stack.spec import ContainerSpec, ReadySpec, ServiceSpec
from pytest_agentbench.lib.options import ValueKind
from pytest_agentbench.lib.user_code import load_object
from pytest_agentbench.records import Json
from pytest_agentbench.schemas.result_files import LINK, docs_of
from pytest_agentbench.suites.spec import SuiteSpec
from pytest_agentbench.tools.factory import TOOL_KINDS

DRAFT = "https://json-schema.org/draft/2020-12/schema"

#: Backend kind -> model of its YAML.
BACKENDS: Mapping[str, type[BaseModel]] = {name: load_object("backend kind", name, KINDS, Path()) for name in KINDS}

#: Keys that are resolved before a model sees them, as (JSON Schema, description).
BESIDE: Mapping[type, Mapping[str, tuple[Json, str]]] = {
    StackKind: {
        "include": (
            {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
            "Other files with `services`, a name or a list: an engine of one file, a retriever of another.",
        ),
        "base": (
            {"type": "string"},
            (
                "Another stack, whose keys this one has unless it sets them itself: a backend by name, or a YAML file relative to this "
                "one. Mappings are merged key by key, other values are replaced, and a key without a value is removed."
            ),
        ),
    },
    Terminal: {
        "config": (
            {"type": "string"},
            (
                "An [agent_config.json or config.yaml](terminal-agent.md#agent_configjson-and-configyaml) next to `suite.yaml`, "
                "or in the working directory."
            ),
        )
    },
}

#: Key that a model requires but `load_backend` fills in if the YAML lacks it -> the value that it gets.
FILLED_IN = {"name": "the file's name"}

#: Descriptions of the key `kind`: for built-in kinds only, and if an import path is allowed too.
KIND_DOC = "The kind, which decides the other keys."
OWN_KIND_DOC = "The kind, which decides the other keys: a built-in name, or an import path such as `./agent.py:Planner`."

UPGRADE_DOC = "Whether calls that do not stream [travel as streams](suites.md#the-agent), so that they have a TTFT."


class SettingsKey(typing.NamedTuple):
    """One option of an agent or of a kind of tools: a field of its dataclass."""

    name: str
    hint: Any
    doc: str
    default: Any  # dataclasses.MISSING if the key is required


def options_of(kind: type) -> list[SettingsKey]:
    """Returns the options that the fields of a dataclass stand for. The description of a number says which numbers are allowed."""
    docs, hints = docs_of(kind), typing.get_type_hints(kind, include_extras=True)
    options = []
    for each in dataclasses.fields(kind):
        default = each.default if each.default_factory is dataclasses.MISSING else each.default_factory()
        words = [about.words for about in getattr(hints[each.name], "__metadata__", ()) if isinstance(about, ValueKind)]
        is_number = bool(words) and typing.get_args(hints[each.name])[0] in {int, float}
        doc = f"{docs[each.name]} It is {words[0]}." if is_number else docs[each.name]
        options.append(SettingsKey(each.name, hints[each.name], doc, default))
    return options


def suite_schema() -> Json:
    """Returns the JSON Schema of suite.yaml."""
    schema = _schema_of({"suite": SuiteSpec})
    known = schema["$defs"] | {kind.__name__: _agent_schema(kind) for kind in agents().values()}
    known |= {kind.__name__: _options_schema(kind, {}) for kind in tools().values()}
    known["Agent"] = _kinds({name: kind.__name__ for name, kind in agents().items()}, default=None, other=":")
    suite, variant = known.pop("SuiteSpec"), known["VariantSpec"]
    own_agent = _kinds({name: kind.__name__ for name, kind in agents().items()}, default="tool_calling", other=":")
    tool_kinds = _kinds({name: kind.__name__ for name, kind in tools().items()}, default="decision_only", other=None)
    _replace(suite, "agent", own_agent)
    _replace(suite, "tools", tool_kinds)
    _replace(variant, "agent", {"$ref": "#/$defs/Agent"})
    _replace(variant, "tools", tool_kinds)
    roles = suite["properties"]["roles"]
    _replace(suite, "roles", {"anyOf": [{"type": "string"}, {key: roles[key] for key in roles if key not in ("description", "default")}]})
    return {"$schema": DRAFT, "title": "pytest-agentbench: suite.yaml", **suite, "$defs": dict(sorted(known.items()))}


def backend_schema() -> Json:
    """Returns the JSON Schema of a backend's YAML. Keys that `load_backend` fills in (FILLED_IN) are not required."""
    schema = _schema_of(BACKENDS)
    known = schema["$defs"]
    for kind in BACKENDS.values():
        known[kind.__name__]["required"] = [name for name in known[kind.__name__]["required"] if name not in FILLED_IN]
    stack = known["StackKind"]
    stack["properties"] |= {name: _described(*about) for name, about in BESIDE[StackKind].items()}
    stack["required"].remove("services")
    stack["anyOf"] = [{"required": [key]} for key in ("services", "include", "base")]
    for name in ("StackKind", *(kind.__name__ for kind in (ServiceSpec, ReadySpec, ContainerSpec))):
        _allow_removal(known[name])
    has_services = {"anyOf": stack["anyOf"]}
    named = [{"if": _is_kind(name, required=True), "then": _ref(kind)} for name, kind in BACKENDS.items()]
    return {
        "$schema": DRAFT,
        "title": "pytest-agentbench: backends/NAME.yaml",
        "type": "object",
        "properties": {"kind": _described({"enum": [*BACKENDS]}, BackendKeys.model_fields["kind"].description or "")},
        "anyOf": [{"required": ["kind"]}, *stack["anyOf"]],
        "allOf": [*named, {"if": has_services, "then": _ref(StackKind)}],
        "$defs": known,
    }


def agents() -> dict[str, type]:
    """Returns kind -> class for each built-in agent."""
    return {name: load_agent(name, Path()) for name in AGENTS}


def tools() -> dict[str, type]:
    """Returns kind -> class for each built-in kind of tools, such as `python` or `mcp`."""
    return {name: load_object("kind of tools", name, TOOL_KINDS, Path()) for name in TOOL_KINDS}


def _schema_of(models: Mapping[str, type[BaseModel]]) -> Json:
    _, schema = models_json_schema([(model, "validation") for model in models.values()])
    plain: Json = _plain(schema)
    return plain


def _plain(schema: Any) -> Any:
    """Returns a JSON Schema of pydantic, from which titles, links and empty defaults are removed.

    If keys of a mapping have a pattern, all other keys become errors, as they are for pydantic.
    """
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key != "title" and not (key == "default" and _says_nothing(value))}
    plain = {
        key: {name: _plain(each) for name, each in value.items()} if key in ("properties", "$defs", "patternProperties") else _plain(value)
        for key, value in kept.items()
    }
    if isinstance(plain.get("description"), str):
        plain["description"] = LINK.sub(r"\1", str(plain["description"]))
    return {**plain, "additionalProperties": False} if "patternProperties" in plain else plain


def _says_nothing(default: Any) -> bool:
    return default is None or default in ("", [], {}) or (isinstance(default, dict) and None in default.values())


def _replace(model: Json, name: str, schema: Json) -> None:
    """Replaces the schema of the key `name` in the schema of a model, but keeps its description."""
    model["properties"][name] = {**schema, "description": model["properties"][name]["description"]}


def _allow_removal(schema: Json) -> None:
    """Allows entries without a value in the mappings of a model. In a stack with a `base` they remove an entry of the base."""
    for about in schema["properties"].values():
        for each in (about, *about.get("anyOf", ())):
            if isinstance(each.get("additionalProperties"), dict):
                each["additionalProperties"] = {"anyOf": [each["additionalProperties"], {"type": "null"}]}


def _described(schema: Json, doc: str) -> Json:
    return {**schema, "description": LINK.sub(r"\1", doc)}


def _ref(kind: type) -> Json:
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _is_kind(name: str, *, required: bool) -> Json:
    return {"properties": {"kind": {"const": name}}, **({"required": ["kind"]} if required else {})}


def _kinds(kinds: Mapping[str, str], default: str | None, other: str | None) -> Json:
    """Returns the JSON Schema of settings whose key `kind` decides which other keys are allowed.

    Args:
        kinds: Kind -> name of the definition of its settings.
        default: The kind of settings without the key `kind`, or None if no kind is assumed for them.
        other: Pattern of other kinds, whose keys are unknown, or None if only `kinds` are allowed.
    """
    names: Json = {"enum": [*kinds]}
    kind = names if other is None else {"anyOf": [names, {"type": "string", "pattern": other}]}
    return {
        "type": "object",
        "properties": {"kind": _described(kind, OWN_KIND_DOC if other else KIND_DOC)},
        "allOf": [
            {"if": _is_kind(name, required=name != default), "then": {"$ref": f"#/$defs/{definition}"}}
            for name, definition in kinds.items()
        ],
    }


def _agent_schema(kind: type) -> Json:
    types = {"temperature": "number", "top_p": "number", "max_tokens": "integer", "seed": "integer", "model": "string"}
    sampling = {
        name: {"type": types[name], "description": f"This request field is sent only if it is set: {about.words}."}
        for name, about in PARAMETERS.items()
    }
    return _options_schema(kind, {**sampling, UPGRADE: _described(_hint_schema(bool | None), UPGRADE_DOC)})


def _options_schema(kind: type, more: Json) -> Json:
    """Returns the JSON Schema of settings that are the options of a dataclass, and of further keys (`more`: key -> schema)."""
    options = {each.name: _described(_hint_schema(each.hint), each.doc) for each in options_of(kind)}
    if "truncation_retry" in options:
        options["truncation_retry"] = {**_options_schema(TruncationRetry, {}), "description": options["truncation_retry"]["description"]}
        options["truncation_retry"]["properties"].pop("kind")
    beside = {name: _described(*about) for name, about in BESIDE.get(kind, {}).items()}
    required = [each.name for each in options_of(kind) if each.default is dataclasses.MISSING]
    return {
        "description": LINK.sub(r"\1", (inspect.getdoc(kind) or "").partition("\n\n")[0]),
        "type": "object",
        "properties": {"kind": _described({}, KIND_DOC), **options, **beside, **more},
        "additionalProperties": False,
        **({"required": required} if required else {}),
    }


def _hint_schema(hint: Any) -> Json:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    plain: dict[Any, Json] = {
        str: {"type": "string"},
        bool: {"type": "boolean"},
        int: {"type": "integer"},
        float: {"type": "number"},
        Agent: {"anyOf": [{"enum": [*AGENTS]}, {"type": "string", "pattern": ":"}, {"$ref": "#/$defs/Agent"}]},
        Json: {"type": "object"},
        NoneType: {"type": "null"},
    }
    if hint in plain:
        return plain[hint]
    if origin is Annotated:
        return _hint_schema(inner[0])
    if origin is Sequence:
        return {"type": "array", "items": _hint_schema(inner[0])}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _hint_schema(inner[1])}
    return {"anyOf": [*map(_hint_schema, inner)]}  # `X | None`
