"""Which rollout a task works for, and whether its agent or a scorer has the turn: for who looks at it from another thread."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass, replace

from pytest_agentbench.lib.capture import Log
from pytest_agentbench.records import Rollout, RolloutKey

AGENT = "the agent"
VERIFIER = "the verifier"


@dataclass
class AttemptContext:
    """One attempt, from its agent's first step to its last score. Tasks and callbacks that it starts share it."""

    key: RolloutKey
    log: Log
    part: str = AGENT
    seconds: float | None = None  # that the part has; None: as long as it takes
    over_at: float | None = None  # seconds, time.monotonic()
    is_over: bool = False  # what still runs was left behind
    rollout: Rollout | None = None  # once its agent is done; its scores are filled in as they come
    _scorer: str = ""

    def begin(self, part: str, seconds: float | None) -> None:
        """A part has its turn."""
        self.part, self.seconds = part, seconds
        self.over_at = None if seconds is None else time.monotonic() + seconds

    def begin_score(self, name: str, seconds: float | None) -> None:
        """A scorer has its turn."""
        self.begin(f"the scorer {name!r}", seconds)
        self._scorer = name

    def without_score(self, why: str) -> Rollout | None:
        """The rollout as far as it is scored, and `why` the scorer that has the turn said nothing; None while the agent has it."""
        if self.rollout is None:
            return None
        errors = {**self.rollout.score_errors} if self._scorer in self.rollout.scores else {**self.rollout.score_errors, self._scorer: why}
        return replace(self.rollout, scores={**self.rollout.scores}, score_errors=errors, log=self.log.text)


_current: ContextVar[AttemptContext | None] = ContextVar("agentbench_attempt", default=None)


@contextmanager
def current_attempt(key: RolloutKey, log: Log) -> Iterator[AttemptContext]:
    """Marks this task, and those that it starts."""
    mark = AttemptContext(key, log)
    token = _current.set(mark)
    try:
        yield mark
    finally:
        mark.is_over = True
        _current.reset(token)


def current() -> AttemptContext | None:
    """That of this task; None outside of a rollout."""
    return _current.get()


def attempt_in(context: Context) -> AttemptContext | None:
    """That of the task which has this context."""
    return context.get(_current)
