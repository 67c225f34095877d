"""Tables of one or more runs: calls, rollouts, scores, samples and metrics. Exports and plots use them.

A journal is read once, one rollout at a time. Metrics are computed from the same columns of calls and rollouts (`metrics/frame`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.metrics import data_columns
from pytest_agentbench.metrics.columns import FrameTable, Growth, Origin, RolloutPlace
from pytest_agentbench.metrics.data_columns import SCORES, ScoreRow, score_rows
from pytest_agentbench.metrics.frame import Frame
from pytest_agentbench.metrics.frame_reader import FrameReader
from pytest_agentbench.metrics.timeline import Calendar
from pytest_agentbench.runs.journal import check_journal, read_journal
from pytest_agentbench.runs.run_file import FILE as RUN_FILE
from pytest_agentbench.runs.run_file import Run, find_run, read_run
from pytest_agentbench.tables.run_tables import RUN_METRICS, SAMPLES, MetricRow, SampleRow, rows_of_metrics, rows_of_samples

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Tables:
    """The tables of some runs. Rows are in the order of the runs, and within a run in the order in which rollouts ended."""

    calls: FrameTable
    rollouts: FrameTable
    scores: FrameTable
    samples: FrameTable
    metrics: FrameTable

    @property
    def all(self) -> tuple[FrameTable, ...]:
        return self.calls, self.rollouts, self.scores, self.samples, self.metrics


_HEADS = {
    "calls": data_columns.call_columns(),
    "rollouts": data_columns.rollout_columns(),
    "scores": SCORES,
    "samples": SAMPLES,
    "metrics": RUN_METRICS,
}

#: Name of a table -> its columns in exported files.
COLUMNS = {name: tuple(head for head in heads if head.exported) for name, heads in _HEADS.items()}


def read_tables(directories: Sequence[Path]) -> Tables:
    """Returns the tables of some run directories. Raises ConfigError if one has no journal, or if two have the same name."""
    reader = FrameReader(events=False)
    scores: Growth[ScoreRow] = Growth("scores", SCORES)
    sample_rows: Growth[SampleRow] = Growth("samples", SAMPLES)
    metric_rows: Growth[MetricRow] = Growth("metrics", RUN_METRICS)
    for origin, run in _runs(directories):
        for place in places(origin):
            reader.add_place(place)
            for score in score_rows(place):
                scores.add(score)
        for sample in rows_of_samples(origin.run, origin.directory):
            sample_rows.add(sample)
        if run:
            for number in rows_of_metrics(origin.run, run):
                metric_rows.add(number)
    frame = reader.frame()
    return Tables(frame.calls, frame.rollouts, scores.table(), sample_rows.table(), metric_rows.table())


def read_frame(origin: Origin, *, events: bool = True) -> Frame:
    """Returns the frame (rollouts and calls as columns) of a run, for metrics. Without `events`, it lacks the output events of calls."""
    reader = FrameReader(origin, events=events)
    for place in places(origin):
        reader.add_place(place)
    return reader.frame()


def origins(directories: Sequence[Path]) -> list[Origin]:
    """Returns name, directory, clock and score scales of each run.

    Raises ConfigError if a run has no journal or an unreadable run.json, or if two have the same name.
    """
    return [origin for origin, _ in _runs(directories)]


def _runs(directories: Sequence[Path]) -> list[tuple[Origin, Run | None]]:
    """Returns (origin, contents of run.json) of each run, with None for a missing run.json.

    Raises ConfigError if a run has no journal or an unreadable run.json, or if two have the same name.
    """
    runs: dict[str, tuple[Origin, Run | None]] = {}
    for directory in directories:
        name = directory.resolve().name  # resolves the link `latest`
        check_journal(directory)
        if name in runs:
            raise ConfigError(
                f"two runs are called {name}: {runs[name][0].directory} and {directory}; give each run only once, or rename one of them"
            )
        run = read_run(directory) if (directory / RUN_FILE).is_file() else None
        scales = {group: suite.scales for group, suite in run.suites.items()} if run else {}
        runs[name] = Origin(name, directory, Calendar(), scales), run
    return [*runs.values()]


def places(origin: Origin) -> Iterator[RolloutPlace]:
    """Yields the rollouts of a run in the order in which they ended, one in memory at a time."""
    for rollout in read_journal(origin.directory):
        origin.calendar.learn(rollout)
        yield RolloutPlace(origin, rollout)


@dataclass(frozen=True)
class Frames:
    """The tables of runs as data frames. Their columns are documented in docs/reference/export.md."""

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
