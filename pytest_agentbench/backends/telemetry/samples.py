"""samples.jsonl: what the services of a backend and its GPUs told over time, a line for each look at one of them.

A service's first line has all its series; a later one has those that changed and those that are new. A line speaks of series by
their number: the place in the list that the `series` of all its lines since the last `first` make together.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, NotRequired, TypedDict, final

import orjson

from pytest_agentbench.errors import ConfigError

FILE = "samples.jsonl"

SampleSource = tuple[str, int]  # service and replica, counted from 0


class Series(NamedTuple):
    """One time series: a metric of a replica under some labels."""

    source: SampleSource
    name: str
    labels: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Sample:
    """What one look found."""

    round: int  # looks of the same round belong together
    at_ns: int  # time.monotonic_ns() when the answer was there
    source: SampleSource
    first: bool = False  # `values` has all series that there are
    values: Mapping[Series, float] = field(default_factory=dict)  # of series that changed or are new
    unknown: frozenset[Series] = frozenset()  # told as what is no finite number
    gone: frozenset[Series] = frozenset()
    failed: str = ""  # why there is nothing; only the first of several such looks is written
    at: float = 0.0  # seconds since 1970


@dataclass(frozen=True)
class GpuSample:
    """How busy a GPU was."""

    round: int
    at_ns: int
    gpu: str
    used_mib: int
    total_mib: int
    sm_percent: float | None
    power_w: float | None
    at: float = 0.0  # seconds since 1970


@final
class ServiceLine(TypedDict):
    """A look at a replica of a service. Of several that failed in a row the first has a line, and the one after them is a `first` again."""

    round: int  # looks of the same round belong together
    at: float  # seconds since 1970
    ns: int  # nanoseconds of the monotonic clock, as in `rollouts.jsonl`
    service: str
    replica: int  # counted from 0
    first: NotRequired[bool]  # the line has all series; later ones have only those whose values changed
    series: NotRequired[list[tuple[str, dict[str, str]]]]  # new ones, name and labels; numbered from 0 on since the last `first`
    values: NotRequired[list[tuple[int, float | None]]]  # a series' number and its value, null for what is no finite number
    gone: NotRequired[list[int]]  # numbers of series that the service tells no more
    failed: NotRequired[str]  # why there are no values


@final
class GpuLine(TypedDict):
    """A look at a GPU."""

    round: int  # looks of the same round belong together
    at: float  # seconds since 1970
    ns: int  # nanoseconds of the monotonic clock, as in `rollouts.jsonl`
    gpu: str
    used_mib: int  # MiB
    total_mib: int  # MiB
    sm_percent: float | None  # null where the driver does not tell
    power_w: float | None  # watts, or null likewise


def read_samples(directory: Path, names: Container[str]) -> Iterator[Sample | GpuSample]:
    """The samples of a run, with those of their series that have one of these names; nothing where none were taken."""
    path = directory / FILE
    if not path.is_file():
        return
    tables: dict[SampleSource, list[Series | None]] = {}
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.endswith(b"\n"):  # a last line may be torn by a kill
                try:
                    facts = orjson.loads(line)
                except orjson.JSONDecodeError as error:  # also if it is nested too deeply
                    raise ConfigError(f"{path}:{number}: not valid JSON: {error}; remove the line") from error
                yield _sample(facts, tables, names)


def _sample(line: ServiceLine | GpuLine, tables: dict[SampleSource, list[Series | None]], names: Container[str]) -> Sample | GpuSample:
    if "gpu" in line:
        memory, load = (line["used_mib"], line["total_mib"]), (line["sm_percent"], line["power_w"])
        return GpuSample(line["round"], line["ns"], line["gpu"], *memory, *load, at=line["at"])
    source = line["service"], line["replica"]
    if "failed" in line:
        return Sample(line["round"], line["ns"], source, failed=line["failed"], at=line["at"])
    table = tables.setdefault(source, [])
    first = "first" in line
    if first:
        table.clear()
    for name, labels in line.get("series", ()):
        table.append(Series(source, name, tuple(sorted(labels.items()))) if name in names else None)
    every = {series: value for number, value in line["values"] if (series := table[number])}
    values = {series: value for series, value in every.items() if value is not None}
    gone = frozenset(series for number in line.get("gone", ()) if (series := table[number]))
    return Sample(line["round"], line["ns"], source, first, values, frozenset(every.keys() - values.keys()), gone, at=line["at"])
