"""Stores in the context of an asyncio task which rollout it belongs to, and which part of it runs: agent, verifier or a scorer.

The watchdog of the pool reads this from another thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass, replace

from pytest_agentbench.lib.standard_streams import Log
from pytest_agentbench.records import Rollout, RolloutKey

AGENT = "the agent"
VERIFIER = "the verifier"


@dataclass
class AttemptContext:
    """State of one attempt of a rollout, from the agent's first step to the last score. All tasks that the attempt starts share it."""

    key: RolloutKey
    log: Log
    part: str = AGENT  # the part that runs: agent, verifier or a scorer
    seconds: float | None = None  # time limit of the part in seconds; None: no limit
    over_at: float | None = None  # end of that time in seconds, time.monotonic()
    is_over: bool = False  # whether the attempt has ended; tasks that still run were left behind
    rollout: Rollout | None = None  # set when the agent is done; scores are added as they come
    _scorer: str = ""

    def begin(self, part: str, seconds: float | None) -> None:
        """Records that the agent or the verifier begins to run, and its time limit in seconds."""
        self.part, self.seconds = part, seconds
        self.over_at = None if seconds is None else time.monotonic() + seconds

    def begin_score(self, name: str, seconds: float | None) -> None:
        """Records that the scorer of the score `name` begins to run, and its time limit in seconds."""
        self.begin(f"the scorer {name!r}", seconds)
        self._scorer = name

    def without_score(self, why: str) -> Rollout | None:
        """Returns the rollout with its scores so far, and `why` as the error of the running scorer. None if the agent is not done yet."""
        if self.rollout is None:
            return None
        errors = {**self.rollout.score_errors} if self._scorer in self.rollout.scores else {**self.rollout.score_errors, self._scorer: why}
        return replace(self.rollout, scores={**self.rollout.scores}, score_errors=errors, log=self.log.text)


_current: ContextVar[AttemptContext | None] = ContextVar("agentbench_attempt", default=None)


@contextmanager
def current_attempt(key: RolloutKey, log: Log) -> Iterator[AttemptContext]:
    """Gives this task, and tasks that it starts, a new attempt context until the `with` block ends."""
    mark = AttemptContext(key, log)
    token = _current.set(mark)
    try:
        yield mark
    finally:
        mark.is_over = True
        _current.reset(token)


def current() -> AttemptContext | None:
    """Returns the attempt context of the current task, or None outside of a rollout."""
    return _current.get()


def attempt_in(context: Context) -> AttemptContext | None:
    """Returns the attempt context in the `contextvars.Context` of any task, or None if that has none."""
    return context.get(_current)
