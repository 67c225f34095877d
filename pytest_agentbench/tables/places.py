"""Where a row is from: its run, its rollout, and the time by the calendar."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pytest_agentbench.records import Rollout
from pytest_agentbench.tables.columns import Column

ROUNDED_NS = 1_000  # nanoseconds that `started_at` may be off by, being a float: stamps of imported runs count from 1970 themselves


@dataclass
class Calendar:
    """Seconds since 1970 of the stamps of a run. A session has a clock of its own, whose beginning its first rollout tells."""

    _began: dict[int, int] = field(default_factory=dict)  # session -> nanoseconds between 1970 and the zero of its clock

    def learn(self, rollout: Rollout) -> None:
        """Takes the beginning of its session's clock from a rollout that has both times."""
        if rollout.started_ns and rollout.session not in self._began:
            began = round(rollout.started_at * 1e9) - rollout.started_ns
            self._began[rollout.session] = began if abs(began) > ROUNDED_NS else 0

    def epoch_ns(self, session: int, stamp: int | None) -> int | None:
        """Nanoseconds since 1970; None where nobody took the time, or where no rollout tells when its session was."""
        began = self._began.get(session)
        return None if not stamp or began is None else stamp + began

    def epoch_s(self, session: int, stamp: int | None) -> float | None:
        at = self.epoch_ns(session, stamp)
        return None if at is None else at / 1e9


class Origin(NamedTuple):
    """A run that is read."""

    run: str  # name of its directory
    directory: Path
    calendar: Calendar


class Place(NamedTuple):
    """A rollout of a run."""

    origin: Origin
    rollout: Rollout


#: What every row says of the rollout that it is of. `of` takes a row with a `place`.
PLACE: tuple[Column[Any], ...] = (
    Column("run", "text", "the run's directory", lambda row: row.place.origin.run),
    Column("suite", "text", "the suite", lambda row: row.place.rollout.suite),
    Column("scenario", "text", "the scenario's id", lambda row: row.place.rollout.scenario),
    Column("variant", "text", "the variant of the suite, `default` where there are none", lambda row: row.place.rollout.variant),
    Column("trial", "count", "which trial of the scenario, counted from 1", lambda row: row.place.rollout.trial),
    Column("kind", "text", "`scenario`, `adhoc` or `primer`, as in rollouts.jsonl", lambda row: row.place.rollout.kind),
)
