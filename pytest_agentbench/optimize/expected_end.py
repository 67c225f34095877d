"""When a study is expected to end, and when its search has to end so that the confirmation fits in the time limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from pytest_agentbench.optimize.plan import StudyPlan

Clock = Callable[[], float]  # returns seconds, as time.monotonic()


class MeasuredSessions(Protocol):
    """The sessions that this process has run."""

    seconds: float
    rollouts: int


@dataclass
class StudyClock:
    """Estimates the rest of a study from the sessions so far. A study that is continued has its whole time limit again."""

    plan: StudyPlan
    sessions: MeasuredSessions
    measured_before: int = 0  # trials that earlier processes have finished
    limit: float | None = None  # seconds for search and confirmation together; None for no limit
    clock: Clock = time.monotonic
    started: float = field(init=False)  # by the clock

    def __post_init__(self) -> None:
        self.started = self.clock()

    @property
    def confirmation_s(self) -> float:
        """The expected duration of the confirmation in seconds, 0 as long as no session has run."""
        return self.plan.rollouts[1] * self.sessions.seconds / self.sessions.rollouts if self.sessions.rollouts else 0.0

    def is_over(self) -> bool:
        """Returns whether search and confirmation would take longer than the limit if the confirmation began now."""
        return self.limit is not None and self.clock() - self.started + self.confirmation_s > self.limit

    def left_s(self, done: int) -> float:
        """Returns the seconds until the expected end, if `done` trials are finished: further trials, and the confirmation.

        With a limit, it is not later than the limit allows.
        """
        passed = self.clock() - self.started
        left = (self.plan.settings - done) * passed / max(1, done - self.measured_before) + self.confirmation_s
        return left if self.limit is None else min(left, max(self.limit - passed, self.confirmation_s))
