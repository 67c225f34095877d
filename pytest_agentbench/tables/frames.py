"""`load(RUN...)`: the tables of runs as data frames. Pandas is imported here, when somebody asks, and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.metrics.columns import FrameTable
from pytest_agentbench.runs.run_file import find_run
from pytest_agentbench.tables import read_tables

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Frames:
    """The tables of runs; docs/export.md has their columns."""

    calls: DataFrame
    rollouts: DataFrame
    scores: DataFrame
    samples: DataFrame
    metrics: DataFrame


def load(*runs: str | Path, reports: str | Path = "reports") -> Frames:
    """The tables of runs, each a directory or its name in the reports; raises ConfigError for one that is not there."""
    if not runs:
        raise ConfigError("load() without a run; name a run directory, or its name in reports/, such as latest")
    tables = read_tables([find_run(str(run), Path(reports)) for run in runs])
    return Frames(*map(_frame, tables.all))


def _frame(table: FrameTable) -> DataFrame:
    """A data frame whose `attrs["units"]` has the units of its columns."""
    import pandas as pd

    frame = pd.DataFrame({head.name: table[head.name] for head in table.heads}, copy=False)
    frame.attrs = {"units": {head.name: head.unit for head in table.heads if head.unit}}
    return frame
