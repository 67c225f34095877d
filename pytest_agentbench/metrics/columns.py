"""Tables of numpy columns, such as the table of LLM calls: declarations of columns (name, kind, unit), and classes that collect rows.

The first columns of the exported tables identify the run and the rollout of a row.
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

#: `number`: float64, NaN if there is no value; `count`: int64; `flag`: bool; `text`: objects, None if there is no value.
ColumnKind = Literal["text", "number", "count", "flag"]

NEVER = -(2**63)  # timestamp of something that did not happen
MOST = 2**62  # the greatest count in a column; servers may report any number

CODES: Mapping[str, str] = {"number": "d", "count": "q", "flag": "b"}  # kind -> type code of `array`, while rows are added
#: Kind -> type of the numpy array.
TYPES: Mapping[str, Any] = {"number": np.float64, "count": np.int64, "flag": np.bool_, "text": np.object_}


@dataclass(frozen=True)
class FrameColumn(Generic[Row]):
    """The declaration of a column: name, kind and unit, and a function that computes its value for a row."""

    name: str  # name; for a duration it ends in the unit: `ttft_ms`
    kind: ColumnKind
    about: str  # description for docs/reference/export.md, a noun phrase
    of: Callable[[Row], Any]  # returns the value of a row; None if there is none, but never for a count or a flag
    unit: str = ""  # unit: ms | s | tokens | ...; empty if there is none
    exported: bool = True  # whether exported files contain the column


#: A column that exports leave out: timestamps of a session clock, row indices and intermediate values.
Hidden = partial(FrameColumn, exported=False)


@dataclass(frozen=True)
class FrameTable:
    """A finished table with columns of equal length. `table[name]` is a numpy array."""

    name: str
    every_head: tuple[FrameColumn[Any], ...]
    columns: Mapping[str, NDArray[Any]]

    @property
    def heads(self) -> tuple[FrameColumn[Any], ...]:
        """The declarations of the columns that exported files contain."""
        return tuple(head for head in self.every_head if head.exported)

    def __len__(self) -> int:
        return len(self.columns[self.every_head[0].name])

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yields the rows of an exported file as Python values. A missing value is None."""
        heads = self.heads
        for place in range(len(self)):
            yield tuple(python_value(self.columns[head.name][place]) for head in heads)

    def where(self, mask: NDArray[np.bool_]) -> FrameTable:
        """Returns a table with the rows for which the mask is true."""
        return FrameTable(self.name, self.every_head, {name: values[mask] for name, values in self.columns.items()})


@dataclass
class Growth(Generic[Row]):
    """Collects the rows of a table while rollouts are read. A value takes eight bytes, and equal texts are stored once."""

    name: str
    heads: Sequence[FrameColumn[Row]]
    _values: list[Any] = field(init=False)
    _texts: dict[str, str] = field(init=False, default_factory=dict)
    _before: FrameTable | None = field(init=False, default=None)  # the table that was returned last

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
        """Returns a table with all rows so far. The first table uses the memory of the collected values; later ones are copies."""
        grown, self._values = self._values, self._empty()
        columns = {}
        for place, head in enumerate(self.heads):
            columns[head.name], grown[place] = _as_array(grown[place], head.kind), None
        if self._before is not None:
            columns = {name: np.concatenate([self._before[name], values]) for name, values in columns.items()}
        self._before = FrameTable(self.name, tuple(self.heads), columns)
        return self._before


def _as_array(values: Any, kind: ColumnKind) -> NDArray[Any]:
    """Returns the numpy array of a column. An array of numbers shares the memory of the values."""
    if kind == "text":
        texts = np.empty(len(values), TYPES[kind])
        texts[:] = values
        return texts
    return np.frombuffer(values, TYPES[kind]) if values else np.empty(0, TYPES[kind])


@dataclass(frozen=True)
class Ragged:
    """A column with any number of values in each row. Row `i` has `values[starts[i] : starts[i + 1]]`."""

    values: NDArray[Any]
    starts: NDArray[np.int64]  # index of the first value of each row, and the number of values at the end

    @property
    def counts(self) -> NDArray[np.int64]:
        """The number of values of each row."""
        return np.diff(self.starts)

    def of(self, rows: NDArray[np.bool_]) -> NDArray[Any]:
        """Returns the values of all rows for which the mask is true, one after the other."""
        return self.values if rows.all() else self.values[np.repeat(rows, self.counts)]


@dataclass
class RaggedGrowth:
    """Collects the rows of a `Ragged` column with integer values."""

    _values: array[int] = field(init=False)
    _starts: array[int] = field(init=False)
    _before: Ragged | None = field(init=False, default=None)  # the Ragged that was returned last

    def __post_init__(self) -> None:
        self._values, self._starts = array("q"), array("q", [0])

    def add(self, values: Sequence[int]) -> None:
        """Adds a row with these values. Values beyond MOST are clipped."""
        if values and (max(values) > MOST or min(values) < -MOST):
            values = [max(-MOST, min(value, MOST)) for value in values]
        self._values.extend(values)
        self._starts.append(len(self._values))

    def ragged(self) -> Ragged:
        """Returns all rows so far. The first Ragged uses the memory of the collected values; later ones are copies."""
        values = np.frombuffer(self._values, np.int64) if self._values else np.empty(0, np.int64)
        made = Ragged(values, np.frombuffer(self._starts, np.int64))
        self._values, self._starts = array("q"), array("q", [0])
        if (before := self._before) is not None:
            starts = np.concatenate([before.starts, made.starts[1:] + len(before.values)])
            made = Ragged(np.concatenate([before.values, made.values]), starts)
        self._before = made
        return made


def python_value(value: Any) -> Any:
    """Returns a value of a column as a Python value. NaN becomes None."""
    plain = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(plain, float) and math.isnan(plain) else plain


class Origin(NamedTuple):
    """The run that rows of tables are from: its directory, its clock and the scales of its scores."""

    run: str  # name of the run directory
    directory: Path  # run directory
    calendar: Calendar  # converts timestamps of sessions to time since 1970
    scales: Mapping[str, Mapping[str, Scale]] = {}  # group -> score -> its scale; empty while the run is in progress

    def scale(self, group: str, score: str) -> Scale:
        """Returns the scale (range, and whether higher is better) of a score of a group (suite, or `suite-variant`)."""
        return scale_in(self.scales.get(group, {}), score)


class RolloutPlace(NamedTuple):
    """A rollout with its run and the index of its row in the table of rollouts."""

    origin: Origin
    rollout: Rollout
    number: int = 0  # index of its row in the table of rollouts, counted from 0


#: The columns that identify the rollout of a row. They accept any row with a `place`.
PLACE: tuple[FrameColumn[Any], ...] = (
    FrameColumn("run", "text", "name of the run directory", lambda row: row.place.origin.run),
    FrameColumn("suite", "text", "name of the suite", lambda row: row.place.rollout.suite),
    FrameColumn("scenario", "text", "id of the scenario", lambda row: row.place.rollout.scenario),
    FrameColumn("variant", "text", "name of the variant, `default` if the suite has none", lambda row: row.place.rollout.variant),
    FrameColumn("trial", "count", "number of the trial, counted from 1", lambda row: row.place.rollout.trial),
    FrameColumn("kind", "text", "`scenario`, `adhoc` or `primer`, as in rollouts.jsonl", lambda row: row.place.rollout.kind),
)
