"""What is generated: JSON Schemas and tables of docs/run-json.md from the records, tables of docs/metrics.md from the registry,
those of docs/export.md from the columns.

`python -m tests.generated` writes them.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import io
import json
import re
import sys
import textwrap
import tokenize
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, Union

from pytest_agentbench.backends.telemetry.samples import GpuLine, ServiceLine
from pytest_agentbench.gate.trend import Trend
from pytest_agentbench.lib.record_fields import parts_of
from pytest_agentbench.metrics import registry
from pytest_agentbench.records import Json, Rollout, Score
from pytest_agentbench.runs.contents import Run
from pytest_agentbench.tables import COLUMNS

ROOT = Path(__file__).parents[1]
SCHEMAS = ROOT / "pytest_agentbench" / "runs" / "schemas"
PAGE = ROOT / "docs" / "run-json.md"
METRICS = ROOT / "docs" / "metrics.md"
EXPORT = ROOT / "docs" / "export.md"
TREND = ROOT / "docs" / "trend.md"

PLAIN = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")

#: What `agentbench schema` shows -> the records of the file, and what a line or a file of it is.
FILES: dict[str, tuple[tuple[type, ...], str]] = {
    "run": ((Run,), "run.json of a run directory"),
    "rollout": ((Rollout,), "a line of rollouts.jsonl"),
    "sample": ((ServiceLine, GpuLine), "a line of samples.jsonl"),
    "trend": ((Trend,), "trend.json, as `agentbench trend` writes it"),
}

#: Keys that a line has beside those of its record.
BESIDE = {
    Rollout: ("crc", str, "[checksum](resume.md#what-survives): CRC-32 of the rest of the line, from behind its comma to the last brace")
}


class Key(NamedTuple):
    """One key of a record."""

    name: str
    kind: Any
    doc: str
    required: bool = True
    open: bool = False  # it stands for all keys that are not named


def docs_of(kind: type) -> dict[str, str]:
    """Field -> the comment behind it, or in the lines above it; those of a base class come first."""
    docs: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if "__annotations__" in vars(each) and each.__module__.startswith("pytest_agentbench"):
            docs |= _own_docs(each)
    return docs


@functools.cache
def _own_docs(kind: type) -> dict[str, str]:
    source = textwrap.dedent(inspect.getsource(kind))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {token.start[0]: token.string.lstrip("#: ") for token in tokens if token.type == tokenize.COMMENT}
    alone = {number for number, line in enumerate(source.splitlines(), 1) if line.lstrip().startswith("#")}
    (body,) = (node.body for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef))
    found = {}
    for node in (node for node in body if isinstance(node, ast.AnnAssign)):
        above = node.lineno
        while above - 1 in alone:
            above -= 1
        lines = [comments[line] for line in range(above, (node.end_lineno or node.lineno) + 1) if line in comments]
        found[ast.unparse(node.target)] = re.sub(r"\bNone\b", "null", " ".join(lines))
    return found


def keys_of(kind: type) -> list[Key]:
    """The keys of a record in their order."""
    docs, hints = docs_of(kind), typing.get_type_hints(kind)
    first = [Key(*BESIDE[kind])] if kind in BESIDE else []
    if kind is Score:
        return [Key("value", float, ""), Key("parts", dict[str, float], "numbers that it is made of"), Key("explanation", str, "")]
    if dataclasses.is_dataclass(kind):
        return [*first, *(Key(each.name, each.kind, docs[each.name], open=each.open) for each in parts_of(kind))]
    extras = typing.get_type_hints(kind, include_extras=True)  # of a TypedDict, or of a tuple whose places have names
    return [Key(name, each, docs[name], typing.get_origin(extras[name]) is not NotRequired) for name, each in hints.items()]


def is_record(kind: Any) -> bool:
    """Whether a type is an object with keys of its own, or a list whose places have names."""
    return kind is Score or dataclasses.is_dataclass(kind) or typing.is_typeddict(kind) or is_row(kind)


def is_row(kind: Any) -> bool:
    """Whether a type is a list whose places have names."""
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


def records_of(kind: Any, seen: dict[type, None] | None = None) -> dict[type, None]:
    """All records within a type, in the order in which a reader meets them."""
    seen = {} if seen is None else seen
    if kind not in seen and kind is not Ellipsis:
        if is_record(kind):
            seen[kind] = None
        for each in (key.kind for key in keys_of(kind)) if is_record(kind) else typing.get_args(kind):
            records_of(each, seen)
    return seen


def schema_of(name: str) -> Json:
    """The JSON Schema of a file's record, or of its lines."""
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
    """Draft 7 sees nothing beside a reference."""
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
    """Of a list that has so many elements."""
    return {"items": places, "minItems": len(places), "maxItems": len(places)}


def tables_of(name: str) -> Iterator[str]:
    """The tables of a file's records, each below its name."""
    named: dict[type, None] = {}
    for kind in FILES[name][0]:
        records_of(kind, named)
    for kind in named:
        yield from (f"### {kind.__name__}", "", (inspect.getdoc(kind) or "").partition("\n\n")[0], "")
        yield from (f"| {'element' if is_row(kind) else 'key'} | type | is |", "|---|---|---|")
        yield from (_row(key) for key in keys_of(kind))
        yield ""


def _row(key: Key) -> str:
    name, kind = ("*", typing.get_args(key.kind)[1]) if key.open else (key.name, key.kind)
    doc = key.doc.replace("|", "\\|")
    return f"| `{name}` | {_type_text(kind)}{'' if key.required else ', not always'} | {doc} |".replace("|  |", "| |")


def _type_text(kind: Any) -> str:
    """`list of [Limit](#limit)`, `number or null`."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return "any"
    if kind in PLAIN:
        return PLAIN[kind]
    if is_record(kind):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    if origin in (Union, types.UnionType):
        return " or ".join(map(_type_text, inner))
    if origin in (tuple, list):
        return _list_text(inner)
    return "object" if inner[1] is Any else f"object of {_type_text(inner[1])}"


def _list_text(inner: tuple[Any, ...]) -> str:
    """`list of string`, or what each place of it is."""
    return f"list of {_type_text(inner[0])}" if inner[1:] in ((), (Ellipsis,)) else f"list: {', '.join(map(_type_text, inner))}"


#: Table of docs/metrics.md -> what of the registry is in it.
METRIC_TABLES = {"durations": registry.latencies, "rates": registry.rates, "efficiency": registry.efficiency, "answers": registry.answers}


def metrics_of(kind: str) -> Iterator[str]:
    """A table of the registry's metrics."""
    yield from ("| metric | in rules, options and `run.json` | is |", "|---|---|---|")
    for name, metric in METRIC_TABLES[kind]().items():
        also = "" if metric.compared else ". It stands in reports and `run.json` alone"
        yield f"| {metric.title} | `{name}` | {metric.definition}{also} |"


def columns_of(table: str) -> Iterator[str]:
    """The columns of a table of runs."""
    yield from ("| column | unit | is |", "|---|---|---|")
    yield from (f"| `{head.name}` | {head.unit or ' '} | {head.about} |".replace("|   |", "| |") for head in COLUMNS[table])


def page(path: Path, tables: Mapping[str, Iterable[str]]) -> str:
    """A page with its tables as they should be: each stands between two comments with its name."""
    text = path.read_text(encoding="utf-8")
    for name, lines in tables.items():
        start, end = f"<!-- {name}: python -m tests.generated -->\n", f"<!-- {name} -->\n"
        head, _, rest = text.partition(start)
        text = "".join((head, start, "\n", *(f"{line}\n" for line in lines), end, rest.partition(end)[2]))
    return text


def generated() -> dict[Path, str]:
    """File -> what should be in it."""
    schemas = {SCHEMAS / f"{name}.json": json.dumps(schema_of(name), indent=2) + "\n" for name in FILES}
    pages = {
        PAGE: {name: tables_of(name) for name in FILES if name != "trend"},
        TREND: {"trend": tables_of("trend")},
        METRICS: {kind: metrics_of(kind) for kind in METRIC_TABLES},
        EXPORT: {table: columns_of(table) for table in COLUMNS},
    }
    return {**schemas, **{path: page(path, tables) for path, tables in pages.items()}}


if __name__ == "__main__":
    for path, text in generated().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"wrote {path.relative_to(ROOT)}\n")
