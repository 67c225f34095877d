"""Values of records for Hypothesis, made from the types of their fields, and values of wrong types."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from pytest_agentbench.lib.record_fields import is_array, is_record, is_union, parts_of
from pytest_agentbench.records import Json

FEW = 2  # elements of a list or an object, at most
TEXTS = st.text(max_size=6)
INTEGERS = st.integers(-(1 << 53), 1 << 53)
FLOATS = st.floats(-1e9, 1e9)
JSON = st.none() | st.booleans() | INTEGERS | FLOATS | TEXTS | st.lists(TEXTS, max_size=FEW)
OBJECTS = st.dictionaries(TEXTS, JSON, max_size=FEW)
SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    Any: JSON,
    str: TEXTS,
    bool: st.booleans(),
    int: INTEGERS,
    float: FLOATS,
    type(None): st.none(),
    Path: st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=FEW).map(lambda parts: Path(*parts)),
    date: st.dates(),
    Json: OBJECTS,
}

#: A JSON value of each shape.
SHAPES = {str: "\0", bool: True, int: 7, float: 0.5, list: [[None]], dict: {"\0": None}, type(None): None}


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Returns a strategy for values of a type that the codec knows."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind in SIMPLE:
        return SIMPLE[kind]
    if is_union(kind):
        return st.one_of(*map(values_of, inner))
    if is_record(kind):
        return st.builds(kind, **{part.name: open_entries(kind) if part.open else values_of(part.kind) for part in parts_of(kind)})
    if origin is tuple and inner[-1] is Ellipsis:
        return st.lists(values_of(inner[0]), max_size=FEW).map(tuple)
    return st.tuples(*map(values_of, inner)) if origin is tuple else st.dictionaries(TEXTS, values_of(inner[1]), max_size=FEW)


def open_entries(kind: type) -> st.SearchStrategy[Any]:
    """Returns a strategy for additional entries of a record, none of which is one of its fields."""
    (part,) = (each for each in parts_of(kind) if each.open)
    return st.dictionaries(st.sampled_from(["x", "y"]).map(lambda name: f"fresh_{name}"), values_of(typing.get_args(part.kind)[1]))


def shapes_of(kind: Any) -> set[type]:
    """Returns the shapes that the JSON of a type may have."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if is_union(kind):
        return set[type]().union(*map(shapes_of, inner))
    if kind is Any:
        return {*SHAPES}
    if is_array(kind) or origin is tuple:
        return {list}
    if is_record(kind) or origin is not None:
        return {dict}
    return {int, float} if kind is float else {{Path: str, date: str}.get(kind, kind)}


def damages(kind: type) -> Iterator[tuple[str, Any]]:
    """Yields a field of a record and a JSON value of a wrong type, for each field and each wrong shape of JSON."""
    for part in parts_of(kind):
        if not part.open:
            yield from ((part.name, value) for shape, value in SHAPES.items() if shape not in shapes_of(part.kind))
