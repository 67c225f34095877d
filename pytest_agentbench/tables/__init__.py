"""What was measured, as columns: calls, rollouts, scores and samples of one or many runs. Files and pictures are made of this.

A journal is read once, a rollout at a time: of an event nothing is kept but what the columns of its call say of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.runs.calendar import Calendar
from pytest_agentbench.runs.journal import check_journal, read_journal
from pytest_agentbench.runs.run_file import FILE as RUN_FILE
from pytest_agentbench.runs.run_file import read_run
from pytest_agentbench.tables import calls, rollouts, samples
from pytest_agentbench.tables.columns import Growth, Table
from pytest_agentbench.tables.places import Origin, RolloutPlace


@dataclass(frozen=True)
class Tables:
    """Those of some runs, in the order in which the runs are named; the rows of a run as its rollouts ended."""

    calls: Table
    rollouts: Table
    scores: Table
    samples: Table

    @property
    def all(self) -> tuple[Table, ...]:
        return self.calls, self.rollouts, self.scores, self.samples


#: Name of a table -> its columns.
COLUMNS = {"calls": calls.CALLS, "rollouts": rollouts.ROLLOUTS, "scores": rollouts.SCORES, "samples": samples.SAMPLES}


def read_tables(directories: Sequence[Path]) -> Tables:
    """The tables of some run directories; raises ConfigError for one without a journal, and for two of one name."""
    grown = {name: Growth(name, columns) for name, columns in COLUMNS.items()}
    for origin in origins(directories):
        for place in places(origin):
            _add(grown, place)
        for sample in samples.rows(origin.run, origin.directory):
            grown["samples"].add(sample)
    return Tables(**{name: growth.table() for name, growth in grown.items()})


def _add(grown: dict[str, Growth[object]], place: RolloutPlace) -> None:
    """A rollout's rows."""
    grown["rollouts"].add(rollouts.RolloutRow(place))
    for call in calls.rows(place):
        grown["calls"].add(call)
    for score in rollouts.score_rows(place):
        grown["scores"].add(score)


def origins(directories: Sequence[Path]) -> list[Origin]:
    """The runs of some directories under their names; raises ConfigError."""
    found: dict[str, Origin] = {}
    for directory in directories:
        name = directory.resolve().name  # behind `latest`
        check_journal(directory)
        if name in found:
            raise ConfigError(
                f"two runs are called {name}: {found[name].directory} and {directory}; name a run once, or rename one of them"
            )
        scales = {group: suite.scales for group, suite in read_run(directory).suites.items()} if (directory / RUN_FILE).is_file() else {}
        found[name] = Origin(name, directory, Calendar(), scales)
    return [*found.values()]


def places(origin: Origin) -> Iterator[RolloutPlace]:
    """The rollouts of a run, one in memory at a time, in the order in which they ended."""
    for rollout in read_journal(origin.directory):
        origin.calendar.learn(rollout)
        yield RolloutPlace(origin, rollout)
