"""`load(RUN...)`: the tables of runs as pandas data frames. Only this module imports pandas, and only when `load` is called."""

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
    """The tables of runs as data frames. Their columns are documented in docs/export.md."""

    calls: DataFrame
    rollouts: DataFrame
    scores: DataFrame
    samples: DataFrame
    metrics: DataFrame


def load(*runs: str | Path, reports: str | Path = "reports") -> Frames:
    """Returns the tables of runs, each given as a directory or a name in `reports`. Raises ConfigError if a run does not exist."""
    if not runs:
        raise ConfigError("load() needs a run; pass a run directory, or a name in reports/ such as latest")
    tables = read_tables([find_run(str(run), Path(reports)) for run in runs])
    return Frames(*map(_frame, tables.all))


def _frame(table: FrameTable) -> DataFrame:
    """Returns a data frame of a table. Its `attrs["units"]` maps columns to units."""
    import pandas as pd

    frame = pd.DataFrame({head.name: table[head.name] for head in table.heads}, copy=False)
    frame.attrs = {"units": {head.name: head.unit for head in table.heads if head.unit}}
    return frame
