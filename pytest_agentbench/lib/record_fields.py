"""The fields of a record and their types, read from its class, and the error for a JSON value that does not fit its type.

`codec` defines which classes are records.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, NamedTuple, Union, cast

from pytest_agentbench.records import OPEN, SHARED


class RecordField(NamedTuple):
    """The description of one field of a record class (see `codec`), which is used to convert records to JSON and back."""

    name: str
    kind: Any
    open: bool = False  # whether it is a mapping whose entries become keys of the record's own JSON object
    shared: bool = False  # whether many records have the same value
    default: Callable[[], Any] | None = None  # creates the default; None for a required field


@functools.cache
def parts_of(kind: type) -> tuple[RecordField, ...]:
    """Returns the fields of a record class, including inherited ones."""
    if is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        every = fields(kind)
        return tuple(
            RecordField(each.name, hints[each.name], each.metadata == OPEN, each.metadata == SHARED, _default(each)) for each in every
        )
    if is_array(kind):
        hints, values = typing.get_type_hints(kind), cast("Any", kind)._field_defaults
        return tuple(RecordField(name, hint, default=_constant(values[name]) if name in values else None) for name, hint in hints.items())
    hints = typing.get_type_hints(kind.__new__)
    parameters = [*inspect.signature(kind.__new__).parameters.values()][1:]
    empty = inspect.Parameter.empty
    return tuple(
        RecordField(each.name, hints[each.name], default=None if each.default is empty else _constant(each.default)) for each in parameters
    )


def _default(field: Any) -> Callable[[], Any] | None:
    if field.default_factory is not MISSING:
        return cast("Callable[[], Any]", field.default_factory)
    return None if field.default is MISSING else _constant(field.default)


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value


def is_union(kind: Any) -> bool:
    """Returns whether a type is a union, such as `int | None`."""
    return typing.get_origin(kind) in (Union, types.UnionType)


def is_array(kind: Any) -> bool:
    """Returns whether a type is a named tuple."""
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


def is_record(kind: Any) -> bool:
    """Returns whether a type is a record: a dataclass, a named tuple, or a subclass of float with attributes."""
    return isinstance(kind, type) and (is_dataclass(kind) or is_array(kind) or (issubclass(kind, float) and kind is not float))


WORDS: Mapping[type, str] = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    dict: "an object",
    list: "a list",
    type(None): "null",
}


class WrongValue(ValueError):
    """A JSON value does not fit its type.

    `sentence` is the message without its subject, such as ` is a text, not a number`. `at` is the name of the missing or unknown field,
    or empty if the value itself is wrong.
    """

    def __init__(self, sentence: str, at: str = "") -> None:
        super().__init__(sentence)
        self.sentence, self.at = sentence, at


class WrongNumber(WrongValue):
    """The JSON document has no shared value with this number."""
