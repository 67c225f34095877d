"""Builds JSON Schemas of the files that a run consists of, from the record classes and the comments of their fields."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import io
import re
import textwrap
import tokenize
import types
import typing
from typing import Any, NamedTuple, NotRequired, Union

from pytest_agentbench.backends.telemetry.kv_events import KvEventLine
from pytest_agentbench.backends.telemetry.samples import GpuLine, ServiceLine
from pytest_agentbench.gate.trend import Trend
from pytest_agentbench.lib.record_fields import parts_of
from pytest_agentbench.records import Json, Rollout, Score
from pytest_agentbench.runs.run_file import Run

LINK = re.compile(r"\[([^\[\]]+)\]\([^()]+\)")


PLAIN = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}

#: Argument of `agentbench schema` -> (record types of the file, description of the file or of a line).
FILES: dict[str, tuple[tuple[type, ...], str]] = {
    "run": ((Run,), "run.json of a run directory"),
    "rollout": ((Rollout,), "a line of rollouts.jsonl"),
    "sample": ((ServiceLine, GpuLine), "a line of samples.jsonl"),
    "kv-event": ((KvEventLine,), "a line of kv_events.jsonl"),
    "trend": ((Trend,), "trend.json, as `agentbench trend` writes it"),
}

#: Keys that a line has in addition to those of its record.
BESIDE = {
    Rollout: ("crc", str, "[checksum](resume.md#what-survives): CRC-32 of the rest of the line, from behind its comma to the last brace")
}


class Key(NamedTuple):
    """One key of a record, an object in a file of a run."""

    name: str
    kind: Any
    doc: str
    required: bool = True
    open: bool = False  # stands for all keys without an entry of their own


def keys_of(kind: type) -> list[Key]:
    """Returns the keys of a record class, in the order of its fields."""
    docs, hints = docs_of(kind), typing.get_type_hints(kind)
    first = [Key(*BESIDE[kind])] if kind in BESIDE else []
    if kind is Score:
        return [Key("value", float, ""), Key("parts", dict[str, float], "numbers that it is made of"), Key("explanation", str, "")]
    if dataclasses.is_dataclass(kind):
        return [*first, *(Key(each.name, each.kind, docs[each.name], open=each.open) for each in parts_of(kind))]
    extras = typing.get_type_hints(kind, include_extras=True)  # for a TypedDict or a NamedTuple
    return [Key(name, each, docs[name], typing.get_origin(extras[name]) is not NotRequired) for name, each in hints.items()]


def is_record(kind: Any) -> bool:
    """Returns whether a type gets its own entry under `definitions` of the JSON Schema: Score, a dataclass, a TypedDict or a NamedTuple."""
    return kind is Score or dataclasses.is_dataclass(kind) or typing.is_typeddict(kind) or is_row(kind)


def is_row(kind: Any) -> bool:
    """Returns whether a type is a NamedTuple, which is an array in JSON."""
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


def records_of(kind: Any, records: dict[type, None] | None = None) -> dict[type, None]:
    """Returns all record classes that a type contains or refers to, in the order of their first use.

    They are the keys of a dict, which serves as an ordered set. `records` has those that were found before.
    """
    records = {} if records is None else records
    if kind not in records and kind is not Ellipsis:
        if is_record(kind):
            records[kind] = None
        for each in (key.kind for key in keys_of(kind)) if is_record(kind) else typing.get_args(kind):
            records_of(each, records)
    return records


def schema_of(name: str) -> Json:
    """Returns the JSON Schema of a file in FILES, or of one of its lines."""
    kinds, about = FILES[name]
    named: dict[type, None] = {}
    for kind in kinds:
        records_of(kind, named)
    known = {each.__name__: _record_schema(each) for each in named}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": f"pytest-agentbench: {about}",
        **(_schema(kinds[0]) if len(kinds) == 1 else {"anyOf": [*map(_schema, kinds)]}),
        "definitions": known,
    }


def _record_schema(kind: type) -> Json:
    if is_row(kind):
        return {"type": "array", **_elements([_described(key) for key in keys_of(kind)])}
    named = [key for key in keys_of(kind) if not key.open]
    more = [_schema(typing.get_args(key.kind)[1]) for key in keys_of(kind) if key.open]
    return {
        "description": LINK.sub(r"\1", (inspect.getdoc(kind) or "").partition("\n\n")[0]),
        "type": "object",
        "properties": {key.name: _described(key) for key in named},
        "required": [key.name for key in named if key.required],
        "additionalProperties": more[0] if more else False,
    }


def _described(key: Key) -> Json:
    """Returns the schema of a key with its description.

    In draft 7, a `$ref` hides the keys next to it, so it is wrapped in `allOf`.
    """
    schema = _schema(key.kind)
    if not key.doc:
        return schema
    return {**({"allOf": [schema]} if "$ref" in schema else schema), "description": LINK.sub(r"\1", key.doc)}


def _schema(kind: Any) -> Json:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return {}
    if kind in PLAIN:
        return {"type": PLAIN[kind]}
    if is_record(kind):
        return {"$ref": f"#/definitions/{kind.__name__}"}
    if origin in (Union, types.UnionType):
        return {"anyOf": [*map(_schema, inner)]}
    if origin in (tuple, list):
        alike = origin is list or Ellipsis in inner
        return {"type": "array", **({"items": _schema(inner[0])} if alike else _elements([*map(_schema, inner)]))}
    return {"type": "object", "additionalProperties": _schema(inner[1])}


def _elements(places: list[Json]) -> Json:
    """Returns the keys of a JSON Schema for an array of fixed length. `places` has the schema of each of its elements."""
    return {"items": places, "minItems": len(places), "maxItems": len(places)}


def docs_of(kind: type) -> dict[str, str]:
    """Returns field of a class -> its comment in the source code, which is behind the field or in the lines above.

    A field without a comment gets the comment of that field in the base class.
    """
    docs: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if "__annotations__" in vars(each) and each.__module__.startswith("pytest_agentbench"):
            docs |= {name: doc for name, doc in _own_docs(each).items() if doc or name not in docs}
    return docs


@functools.cache
def _own_docs(kind: type) -> dict[str, str]:
    source = textwrap.dedent(inspect.getsource(kind))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {token.start[0]: token.string.lstrip("#: ") for token in tokens if token.type == tokenize.COMMENT}
    alone = {number for number, line in enumerate(source.splitlines(), 1) if line.lstrip().startswith("#")}
    (body,) = (node.body for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef))
    docs = {}
    for node in (node for node in body if isinstance(node, ast.AnnAssign)):
        above = node.lineno
        while above - 1 in alone:
            above -= 1
        lines = [comments[line] for line in range(above, (node.end_lineno or node.lineno) + 1) if line in comments]
        docs[ast.unparse(node.target)] = re.sub(r"\bNone\b", "null", " ".join(lines))
    return docs
