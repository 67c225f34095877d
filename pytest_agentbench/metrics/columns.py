"""Columns: what a row of a table has, under which name and in which unit, and how values are kept while rows are added.

Every row begins with where it is from: its run, its rollout, and the time by the calendar.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from pytest_agentbench.metrics.timeline import Calendar
from pytest_agentbench.records import Rollout, Scale, scale_in

Row = TypeVar("Row")

#: `number`: float64, NaN if there is none; `count`: int64; `flag`: bool; `text`: objects, None if there is none.
ColumnKind = Literal["text", "number", "count", "flag"]

NEVER = -(2**63)  # a stamp of what did not happen
MOST = 2**62  # the greatest count that a column keeps; servers may say any number

CODES: Mapping[str, str] = {"number": "d", "count": "q", "flag": "b"}  # of arrays that grow
TYPES: Mapping[str, Any] = {"number": np.float64, "count": np.int64, "flag": np.bool_, "text": np.object_}


@dataclass(frozen=True)
class FrameColumn(Generic[Row]):
    """A value that every row of a table has."""

    name: str  # the name of a duration ends in its unit: `ttft_ms`
    kind: ColumnKind
    about: str  # half a sentence
    of: Callable[[Row], Any]  # None if a row has no value; a row always has a count and a flag
    unit: str = ""  # ms | s | tokens | ...; empty if there is nothing to measure
    exported: bool = True  # whether files have it


#: A column that exports leave out: stamps of a session's clock, row numbers and intermediate values.
Hidden = partial(FrameColumn, exported=False)


@dataclass(frozen=True)
class FrameTable:
    """Columns of one length. `table[name]` is a numpy array."""

    name: str
    every_head: tuple[FrameColumn[Any], ...]
    columns: Mapping[str, NDArray[Any]]

    @property
    def heads(self) -> tuple[FrameColumn[Any], ...]:
        """The columns that files have."""
        return tuple(head for head in self.every_head if head.exported)

    def __len__(self) -> int:
        return len(self.columns[self.every_head[0].name])

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yields the rows of a file as Python's own values; None if there is no value."""
        heads = self.heads
        for place in range(len(self)):
            yield tuple(python_value(self.columns[head.name][place]) for head in heads)

    def where(self, mask: NDArray[np.bool_]) -> FrameTable:
        """Returns the rows for which the mask is true."""
        return FrameTable(self.name, self.every_head, {name: values[mask] for name, values in self.columns.items()})


@dataclass
class Growth(Generic[Row]):
    """A table to which rows are added: eight bytes a value, and each text once."""

    name: str
    heads: Sequence[FrameColumn[Row]]
    _values: list[Any] = field(init=False)
    _texts: dict[str, str] = field(init=False, default_factory=dict)
    _before: FrameTable | None = field(init=False, default=None)  # the rows of the last table

    def __post_init__(self) -> None:
        self._values = self._empty()

    def _empty(self) -> list[Any]:
        return [[] if head.kind == "text" else array(CODES[head.kind]) for head in self.heads]

    def add(self, row: Row) -> None:
        for head, values in zip(self.heads, self._values, strict=True):
            value = head.of(row)
            if head.kind == "number":
                values.append(math.nan if value is None else value)
            elif head.kind == "text":
                values.append(None if value is None else self._texts.setdefault(value, value))
            else:
                values.append(min(MOST, value))

    def table(self) -> FrameTable:
        """Returns all rows so far. The first table shares the memory in which it grew; a later one is a copy."""
        grown, self._values = self._values, self._empty()
        columns = {}
        for place, head in enumerate(self.heads):
            columns[head.name], grown[place] = _as_array(grown[place], head.kind), None
        if self._before is not None:
            columns = {name: np.concatenate([self._before[name], values]) for name, values in columns.items()}
        self._before = FrameTable(self.name, tuple(self.heads), columns)
        return self._before


def _as_array(values: Any, kind: ColumnKind) -> NDArray[Any]:
    """Returns the numpy array of a column; one of numbers shares the memory of the values."""
    if kind == "text":
        texts = np.empty(len(values), TYPES[kind])
        texts[:] = values
        return texts
    return np.frombuffer(values, TYPES[kind]) if values else np.empty(0, TYPES[kind])


@dataclass(frozen=True)
class Ragged:
    """Any number of values for each row of a table: those of row `i` are `values[starts[i] : starts[i + 1]]`."""

    values: NDArray[Any]
    starts: NDArray[np.int64]  # one more than rows

    @property
    def counts(self) -> NDArray[np.int64]:
        """The number of values of each row."""
        return np.diff(self.starts)

    def of(self, rows: NDArray[np.bool_]) -> NDArray[Any]:
        """Returns the values of the rows for which the mask is true."""
        return self.values if rows.all() else self.values[np.repeat(rows, self.counts)]


@dataclass
class RaggedGrowth:
    """A Ragged to which rows are added; its values are whole numbers."""

    _values: array[int] = field(init=False)
    _starts: array[int] = field(init=False)
    _before: Ragged | None = field(init=False, default=None)  # the rows of the last one

    def __post_init__(self) -> None:
        self._values, self._starts = array("q"), array("q", [0])

    def add(self, values: Sequence[int]) -> None:
        """Adds a row with its values."""
        if values and (max(values) > MOST or min(values) < -MOST):
            values = [max(-MOST, min(value, MOST)) for value in values]
        self._values.extend(values)
        self._starts.append(len(self._values))

    def ragged(self) -> Ragged:
        """Returns all rows so far, as `Growth.table` does."""
        values = np.frombuffer(self._values, np.int64) if self._values else np.empty(0, np.int64)
        made = Ragged(values, np.frombuffer(self._starts, np.int64))
        self._values, self._starts = array("q"), array("q", [0])
        if (before := self._before) is not None:
            starts = np.concatenate([before.starts, made.starts[1:] + len(before.values)])
            made = Ragged(np.concatenate([before.values, made.values]), starts)
        self._before = made
        return made


def python_value(value: Any) -> Any:
    """Returns a value of a column as a value of Python, NaN as None."""
    plain = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(plain, float) and math.isnan(plain) else plain


class Origin(NamedTuple):
    """A run that is read."""

    run: str  # name of its directory
    directory: Path
    calendar: Calendar
    scales: Mapping[str, Mapping[str, Scale]] = {}  # group -> score -> its scale; empty while the run goes on

    def scale(self, group: str, score: str) -> Scale:
        """Returns what the scorer of a group's score declares."""
        return scale_in(self.scales.get(group, {}), score)


class RolloutPlace(NamedTuple):
    """A rollout of a run."""

    origin: Origin
    rollout: Rollout
    number: int = 0  # of its row in a table of rollouts, counted from 0


#: What every row says of the rollout that it is of. `of` takes a row with a `place`.
PLACE: tuple[FrameColumn[Any], ...] = (
    FrameColumn("run", "text", "the run's directory", lambda row: row.place.origin.run),
    FrameColumn("suite", "text", "the suite", lambda row: row.place.rollout.suite),
    FrameColumn("scenario", "text", "the scenario's id", lambda row: row.place.rollout.scenario),
    FrameColumn("variant", "text", "the variant of the suite, `default` where there are none", lambda row: row.place.rollout.variant),
    FrameColumn("trial", "count", "which trial of the scenario, counted from 1", lambda row: row.place.rollout.trial),
    FrameColumn("kind", "text", "`scenario`, `adhoc` or `primer`, as in rollouts.jsonl", lambda row: row.place.rollout.kind),
)
