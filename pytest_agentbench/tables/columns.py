"""Columns: what a row of a table has, under which name and in which unit, and how its values are kept."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

Row = TypeVar("Row")

#: `number`: float64, NaN where there is none; `count`: int64; `flag`: bool; `text`: objects, None where there is none.
ColumnKind = Literal["text", "number", "count", "flag"]

CODES: Mapping[str, str] = {"number": "d", "count": "q", "flag": "b"}  # of arrays that grow
TYPES: Mapping[str, Any] = {"number": np.float64, "count": np.int64, "flag": np.bool_, "text": np.object_}


@dataclass(frozen=True)
class Column(Generic[Row]):
    """What every row of a table has one of."""

    name: str  # a duration's ends in its unit: `ttft_ms`
    kind: ColumnKind
    about: str  # half a sentence
    of: Callable[[Row], Any]  # None where a row has no value, which a count and a flag always have
    unit: str = ""  # ms | s | tokens | ...; empty where there is nothing to measure


@dataclass(frozen=True)
class Table:
    """Columns of one length. `columns[name]` is a numpy array."""

    name: str
    heads: tuple[Column[Any], ...]
    columns: Mapping[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.columns[self.heads[0].name])

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """The rows as Python's own values, one at a time; None where there is no value."""
        for place in range(len(self)):
            yield tuple(_plain(self.columns[head.name][place]) for head in self.heads)

    def where(self, mask: NDArray[np.bool_]) -> Table:
        """The rows for which the mask is true."""
        return Table(self.name, self.heads, {name: values[mask] for name, values in self.columns.items()})


@dataclass
class Growth(Generic[Row]):
    """A table while its rows are read: eight bytes a value, and each text once."""

    name: str
    heads: Sequence[Column[Row]]
    _values: list[Any] = field(init=False)
    _texts: dict[str, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._values = [[] if head.kind == "text" else array(CODES[head.kind]) for head in self.heads]

    def add(self, row: Row) -> None:
        for head, values in zip(self.heads, self._values, strict=True):
            value = head.of(row)
            if head.kind == "number":
                values.append(math.nan if value is None else value)
            elif head.kind == "text":
                values.append(None if value is None else self._texts.setdefault(value, value))
            else:
                values.append(value)

    def table(self) -> Table:
        """What has been read, and the end of reading: the values are handed over one column after the other."""
        columns = {}
        for head in self.heads:
            values = self._values.pop(0)
            columns[head.name] = _as_array(values, head.kind)
        return Table(self.name, tuple(self.heads), columns)


def _as_array(values: Any, kind: ColumnKind) -> NDArray[Any]:
    """A numpy array of a column; one of numbers shares the memory in which it grew."""
    if kind == "text":
        texts = np.empty(len(values), TYPES[kind])
        texts[:] = values
        return texts
    return np.frombuffer(values, TYPES[kind]) if values else np.empty(0, TYPES[kind])


def _plain(value: Any) -> Any:
    plain = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(plain, float) and math.isnan(plain) else plain
