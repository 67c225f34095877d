"""Where a row is from: its run, its rollout, and the time by the calendar."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pytest_agentbench.metrics.calendar import Calendar
from pytest_agentbench.metrics.columns import FrameColumn
from pytest_agentbench.records import Rollout, Scale, scale_in


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
