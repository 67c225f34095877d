"""Records to JSON and back. A record is a frozen dataclass; the types of its fields are all that has to be written down for it."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import Field, fields, is_dataclass
from typing import Any, NamedTuple, TypeVar, Union, cast

from pytest_agentbench.records import OPEN

Record = TypeVar("Record")

WORDS: Mapping[type, str] = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    dict: "an object",
    list: "a list",
    type(None): "null",
}


def is_open(field: Field[Any]) -> bool:
    """Whether the entries of a field stand among the keys of its record."""
    return field.metadata == OPEN


def plain(value: Any) -> Any:
    """What JSON can say: records and mappings as objects, tuples as lists."""
    if is_dataclass(value):
        return {name: plain(each) for name, each in _entries(value)}
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    return [*map(plain, value)] if isinstance(value, list | tuple) else value


def _entries(record: Any) -> Iterator[tuple[str, Any]]:
    for each in fields(record):
        value = getattr(record, each.name)
        yield from value.items() if is_open(each) else ((each.name, value),)


def read(kind: type[Record], data: object, path: str = "") -> Record:
    """A record of what JSON said; raises ValueError with the first place that is wrong, such as `suites.banking.retried is a text, ...`.

    `path` is where in a file the data stand.
    """
    return cast("Record", _read(kind, data, path))


def _read(kind: Any, data: Any, path: str) -> Any:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return data
    if origin in (Union, types.UnionType):
        return _one_of(inner, data, path)
    if origin is tuple:
        return _tuple(inner, _checked(list, data, path), path)
    if is_dataclass(kind):
        return _record(cast("type", kind), _checked(dict, data, path), path)
    if origin is not None:  # a mapping
        return {name: _read(inner[1], each, f"{path}.{name}".lstrip(".")) for name, each in _checked(dict, data, path).items()}
    return _checked(kind, data, path)


def _one_of(kinds: tuple[Any, ...], data: Any, path: str) -> Any:
    """Of a union the first member that has the data's type, or else the first one, which says what is wrong."""
    if data is None and type(None) in kinds:
        return None
    others = [kind for kind in kinds if kind is not type(None)]
    return _read(next((kind for kind in others if kind in WORDS and _is(kind, data)), others[0]), data, path)


def _tuple(kinds: tuple[Any, ...], data: list[Any], path: str) -> tuple[Any, ...]:
    every = kinds[:1] * len(data) if kinds[-1] is Ellipsis else kinds
    if len(every) != len(data):
        raise ValueError(f"{path} has {len(data)} elements, not {len(every)}")
    return tuple(_read(kind, each, f"{path}[{place}]") for place, (kind, each) in enumerate(zip(every, data, strict=True)))


class RecordField(NamedTuple):
    """A field of a record, as it is read."""

    name: str
    kind: Any
    open: bool


@functools.cache
def parts_of(kind: type) -> tuple[RecordField, ...]:
    """The fields of a record with their types, those of the records that it inherits from among them."""
    hints = typing.get_type_hints(kind)
    return tuple(RecordField(each.name, hints[each.name], is_open(each)) for each in fields(kind))


def _record(kind: type, data: Mapping[str, Any], path: str) -> Any:
    parts = parts_of(kind)
    known = {part.name: part for part in parts if not part.open}
    more = {name: value for name, value in data.items() if name not in known}
    where = f"{path}." if path else ""
    if missing := [name for name in known if name not in data]:
        raise ValueError(f"{where}{missing[0]} is missing")
    if more and len(known) == len(parts):
        raise ValueError(f"{where}{next(iter(more))} is unknown; known are: {', '.join(known)}")
    values = {name: _read(known[name].kind, value, f"{where}{name}") for name, value in data.items() if name in known}
    return kind(**values, **{part.name: _read(part.kind, more, path) for part in parts if part.open})


def _checked(kind: type, data: Any, path: str) -> Any:
    if not _is(kind, data):
        raise ValueError(f"{path or 'it'} is {WORDS.get(type(data), type(data).__name__)}, not {WORDS[kind]}")
    return data


def _is(kind: type, data: Any) -> bool:
    """Whole numbers are numbers; true and false are none. Inside a program lists may be tuples, and objects any mapping."""
    if kind in (dict, list):
        return isinstance(data, Mapping if kind is dict else list | tuple)
    return isinstance(data, (int, float) if kind is float else kind) and (kind is bool or not isinstance(data, bool))
