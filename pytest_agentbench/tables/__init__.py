"""What was measured, as columns: calls, rollouts, scores, samples and metrics of one or many runs. Files and pictures are made of this.

A journal is read once, a rollout at a time. What calls and rollouts have is what numbers of a run are computed from (`metrics/frame`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.metrics import call_columns, rollout_columns
from pytest_agentbench.metrics.columns import FrameTable, Growth, Origin, RolloutPlace
from pytest_agentbench.metrics.frame import Frame
from pytest_agentbench.metrics.frame_reader import FrameReader
from pytest_agentbench.metrics.rollout_columns import SCORES, ScoreRow, score_rows
from pytest_agentbench.metrics.timeline import Calendar
from pytest_agentbench.runs.journal import check_journal, read_journal
from pytest_agentbench.runs.run_file import FILE as RUN_FILE
from pytest_agentbench.runs.run_file import Run, read_run
from pytest_agentbench.tables.run_tables import RUN_METRICS, SAMPLES, MetricRow, SampleRow, rows_of_metrics, rows_of_samples


@dataclass(frozen=True)
class Tables:
    """Those of some runs, in the order in which the runs are named; the rows of a run as its rollouts ended."""

    calls: FrameTable
    rollouts: FrameTable
    scores: FrameTable
    samples: FrameTable
    metrics: FrameTable

    @property
    def all(self) -> tuple[FrameTable, ...]:
        return self.calls, self.rollouts, self.scores, self.samples, self.metrics


_HEADS = {
    "calls": call_columns.columns(),
    "rollouts": rollout_columns.columns(),
    "scores": SCORES,
    "samples": SAMPLES,
    "metrics": RUN_METRICS,
}

#: Name of a table -> its columns in files.
COLUMNS = {name: tuple(head for head in heads if head.exported) for name, heads in _HEADS.items()}


def read_tables(directories: Sequence[Path]) -> Tables:
    """Returns the tables of some run directories; raises ConfigError for one without a journal, and for two of one name."""
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
    """Returns all that numbers of a run are computed from, without `events` but those of events."""
    reader = FrameReader(origin, events=events)
    for place in places(origin):
        reader.add_place(place)
    return reader.frame()


def origins(directories: Sequence[Path]) -> list[Origin]:
    """The runs of some directories under their names; raises ConfigError."""
    return [origin for origin, _ in _runs(directories)]


def _runs(directories: Sequence[Path]) -> list[tuple[Origin, Run | None]]:
    """Returns each run with the contents of its run.json, None if it has none; raises ConfigError."""
    runs: dict[str, tuple[Origin, Run | None]] = {}
    for directory in directories:
        name = directory.resolve().name  # behind `latest`
        check_journal(directory)
        if name in runs:
            raise ConfigError(
                f"two runs are called {name}: {runs[name][0].directory} and {directory}; name a run once, or rename one of them"
            )
        run = read_run(directory) if (directory / RUN_FILE).is_file() else None
        scales = {group: suite.scales for group, suite in run.suites.items()} if run else {}
        runs[name] = Origin(name, directory, Calendar(), scales), run
    return [*runs.values()]


def places(origin: Origin) -> Iterator[RolloutPlace]:
    """The rollouts of a run, one in memory at a time, in the order in which they ended."""
    for rollout in read_journal(origin.directory):
        origin.calendar.learn(rollout)
        yield RolloutPlace(origin, rollout)
