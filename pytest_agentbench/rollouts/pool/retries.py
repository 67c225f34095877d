"""Which rollouts get another attempt, and when."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from pytest_agentbench.metrics.blame import refusal
from pytest_agentbench.records import Attempt, Rollout, RolloutKey
from pytest_agentbench.runs.attempts import AttemptFailed

PAUSE = 0.2  # seconds before the second attempt, doubled before each further one
LONGEST_PAUSE = 60.0  # seconds; a backend that asks for more is asked again all the same


class RetryPolicy:
    """Decides whether a rollout whose attempt has failed gets another one, and keeps the earlier attempts of rollouts under way.

    Only `infra_error` is tried again, up to `most` times. A request that the server refused is not repeated. An attempt that a death of a
    part of the session interrupted costs the rollout no retry. Earlier pools and sessions count: `failed` has their attempts.
    """

    def __init__(
        self, most: int, failed: Mapping[RolloutKey, Sequence[AttemptFailed]], tell: Callable[[AttemptFailed], None] = lambda _: None
    ) -> None:
        """`tell` is called with each attempt that is followed by another one."""
        self._most, self._tell = most, tell
        self._earlier = {key: tuple(each.attempt for each in attempts) for key, attempts in failed.items()}
        self._tries = {key: sum(not each.interrupted for each in attempts) for key, attempts in failed.items()}

    def numbered(self, rollout: Rollout) -> Rollout:
        """Returns the record of an attempt with its number and the attempts before it."""
        earlier = self._earlier.get(rollout.key, ())
        return dataclasses.replace(rollout, attempt=len(earlier) + 1, earlier_attempts=earlier)

    def pause_after(self, rollout: Rollout) -> float | None:
        """Counts an attempt that was not interrupted; returns the seconds until the next one, or None if there is none."""
        tries = self._tries[rollout.key] = self._tries.get(rollout.key, 0) + 1
        if rollout.status != "infra_error" or tries > self._most or refusal((*rollout.calls, *rollout.other_calls)):
            return None
        return pause(rollout, tries)

    def keep(self, key: RolloutKey, attempt: Attempt, *, interrupted: bool) -> None:
        """Keeps an attempt that is followed by another one."""
        self._earlier[key] = (*self._earlier.get(key, ()), attempt)
        self._tell(AttemptFailed(key, attempt, interrupted))

    def count(self, key: RolloutKey) -> int:
        """Returns how many earlier attempts a rollout has."""
        return len(self._earlier.get(key, ()))

    def forget(self, key: RolloutKey) -> None:
        """Drops the attempts of a rollout that is over."""
        self._earlier.pop(key, None)


def pause(rollout: Rollout, attempt: int) -> float:
    """Seconds to wait after a failed attempt, counted from 1: longer each time, and as long as the backend asked for (Retry-After)."""
    asked = rollout.calls[-1].retry_after_s if rollout.calls else None
    return min(max(math.ldexp(PAUSE, attempt - 1), asked or 0), LONGEST_PAUSE)
