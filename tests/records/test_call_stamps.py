"""Stamps and lengths of time in records: each field with nanoseconds says which of them it is."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from pytest_agentbench import records
from pytest_agentbench.lib.record_fields import is_record, parts_of
from pytest_agentbench.records import Nanoseconds, Rollout, Stamp
from pytest_agentbench.schemas.result_files import records_of

#: The classes of the package, and those of which a record of a rollout consists.
CLASSES = {each: None for name in records.__all__ if is_record(each := getattr(records, name))} | records_of(Rollout)


def unclassified(kind: type) -> Iterator[str]:
    """Yields the fields of a class that end in `_ns` and are neither stamps nor lengths of time, and other fields that are one."""
    hints = typing.get_type_hints(
        kind if hasattr(kind, "_fields") or hasattr(kind, "__dataclass_fields__") else kind.__new__, None, None, True
    )
    for part in parts_of(kind):
        kinds = {each for each in (hints[part.name], *typing.get_args(hints[part.name])) if each in (Stamp, Nanoseconds)}
        if bool(kinds) != part.name.endswith("_ns"):
            yield f"{kind.__name__}.{part.name}"


def test_each_field_with_nanoseconds_is_a_stamp_or_a_length() -> None:
    """Every field of a record whose name ends in `_ns`, and no other one, is a Stamp or a Nanoseconds. Otherwise it would not be moved."""
    assert len(CLASSES) > 12
    assert [] == [field for kind in CLASSES for field in unclassified(kind)]


class Row(NamedTuple):
    """An array with a field that does not say what it is."""

    at_ns: int


@dataclass(frozen=True)
class Late:
    """A record with fields that do not say what they are, and with fields that do."""

    late_ns: int | None
    seconds: Stamp
    sent_ns: Stamp | None = None
    held_ns: Nanoseconds = 0


@pytest.mark.parametrize(("kind", "fields"), [(Row, ["Row.at_ns"]), (Late, ["Late.late_ns", "Late.seconds"])])
def test_a_field_that_does_not_say_what_it_is(kind: type, fields: list[str]) -> None:
    """The test above finds fields of dataclasses and named tuples, also those that may be None."""
    assert fields == [*unclassified(kind)]
