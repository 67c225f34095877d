"""When it was by the calendar: stamps of rollouts are of the clocks of their sessions."""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_agentbench.records import Rollout

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
