"""Decides what follows from a failed attempt: another attempt, or none.

Also detects whether the death of a process interrupted it, and whether the server refuses every call of a suite.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_agentbench.errors import InfraError
from pytest_agentbench.metrics.blame import refusal
from pytest_agentbench.records import Attempt, LLMCall, Rollout, RolloutKey
from pytest_agentbench.rollouts.protocol import CheckProcesses, PoolNote
from pytest_agentbench.runs.attempts import AttemptFailed

#: Error kinds of calls that got no answer or a truncated one.
UNANSWERED = ("connect", "timeout_connect", "timeout_first_token", "timeout_idle", "cut")
GRACE = 0.05  # seconds from the last bytes of a killed process until its death can be detected


class Interrupted(InfraError):
    """Raised if an attempt failed because a process of the session died. The attempt is repeated without counting as a retry."""

    def __init__(self, rollout: Rollout) -> None:
        """Takes the record of the attempt."""
        super().__init__(rollout.reason)
        self.rollout = rollout


class Outages:
    """Counts how often parts of the session (processes that rollouts depend on) became unavailable, to explain failed attempts.

    An attempt remembers `count` when it begins. If it fails, `explain` compares the counts. If not all calls of the attempt were answered,
    it first asks the controller whether a part has died. Attempts that fail at the same time share one question.
    """

    def __init__(self, tell: Callable[[PoolNote], None]) -> None:
        self._tell = tell
        self._unavailable: Mapping[str, str] = {}
        # Group of rollouts -> outages of parts that only this group uses. The key "" counts outages of parts that all rollouts use.
        self._counts: Counter[str] = Counter()
        self._check: asyncio.Task[None] | None = None
        self._check_answered = asyncio.Event()
        self._is_over = False

    def update(self, unavailable: Mapping[str, str]) -> None:
        """Sets which parts are unavailable now, and counts the new ones.

        Args:
            unavailable: Part -> group (suite and variant) of the only rollouts that use it. Empty if all rollouts do.
        """
        self._counts.update(group for part, group in unavailable.items() if part not in self._unavailable)
        self._unavailable = unavailable

    def add(self, part: str, group: str) -> None:
        """Adds a part that has become unavailable."""
        self.update({**self._unavailable, part: group})

    def count(self, key: RolloutKey) -> int:
        """Returns how often a part that this rollout uses has become unavailable so far."""
        return self._counts[""] + self._counts[key.group]

    async def explain(self, key: RolloutKey, calls: Sequence[LLMCall], before: int) -> bool:
        """Returns whether an outage interrupted a failed attempt. `before` was `count` when it began, `calls` are all its calls."""
        if not self._is_over and (not calls or any(call.error_kind in UNANSWERED for call in calls)):
            if self._check is None or self._check.done():
                self._check = asyncio.create_task(self._ask())
            await asyncio.shield(self._check)
        return self.count(key) > before

    async def checked(self, rollout: Rollout, before: int) -> Rollout:
        """Returns the record of an attempt. Raises Interrupted if the attempt failed because of an outage. `before` as for `explain`."""
        has_failed, calls = rollout.status == "infra_error" or rollout.score_errors, (*rollout.calls, *rollout.other_calls)
        if has_failed and await self.explain(rollout.key, calls, before):
            raise Interrupted(rollout)
        return rollout

    async def _ask(self) -> None:
        await asyncio.sleep(GRACE)
        if self._is_over:
            return
        self._check_answered.clear()
        self._tell(CheckProcesses())
        await self._check_answered.wait()

    def answer(self) -> None:
        """Lets `explain` go on, because the controller has answered `CheckProcesses`. Before that it has reported all known deaths."""
        self._check_answered.set()

    def end(self) -> None:
        """Stops waiting for answers of the controller, because none will come."""
        self._is_over = True
        self._check_answered.set()


@dataclass
class SuiteRefusals:
    """The calls so far of one group (a suite under one variant): which scenarios were refused, and whether a call succeeded."""

    answered: bool = False  # whether a call succeeded
    refused: dict[str, str] = field(default_factory=dict)  # scenario -> the server's message
    undecided: set[RolloutKey] | None = None  # running rollouts that may still be answered; None: too few refusals so far


class Refusals:
    """Decides which groups of rollouts (a suite under one variant) are given up because the server refuses all of their calls."""

    def __init__(self) -> None:
        self._groups: dict[str, SuiteRefusals] = {}

    def after(self, rollout: Rollout, planned: Iterable[RolloutKey], running: Iterable[RolloutKey]) -> str:
        """Takes the record of an ended rollout. Returns why its group is given up, or an empty string if it is not.

        A group is given up if two of its scenarios, or its only one, were refused and none of its calls was answered. Rollouts that run
        at that time are awaited first, because a refusal comes sooner than an answer.
        """
        group = self._groups.setdefault(rollout.key.group, SuiteRefusals())
        messages = refusal(rollout.calls)
        group.answered = group.answered or any(call.error_kind is None for call in rollout.calls)
        if messages:
            group.refused[rollout.scenario] = messages
        if group.answered or not group.refused:
            return ""
        if group.undecided is None and (len(group.refused) > 1 or {key.scenario for key in planned} <= group.refused.keys()):
            group.undecided = {*running}
        if group.undecided is None:
            return ""
        group.undecided.discard(rollout.key)
        return "" if group.undecided else _sentence(rollout.key.group, [*group.refused.values()])


def _sentence(group: str, messages: Sequence[str]) -> str:
    refused = f"the first {len(messages)} scenarios" if len(messages) > 1 else "the only scenario"
    return f"{messages[0]}; the server refused {refused} of {group} and answered no call, so no further scenario is tried"


PAUSE = 0.2  # seconds before the second attempt, doubled before each further one
LONGEST_PAUSE = 60.0  # seconds, even if the backend asks for more


class RetryPolicy:
    """Decides whether a rollout gets another attempt after a failed one, and keeps the earlier attempts of unfinished rollouts.

    Only an attempt that ends as `infra_error` is retried, up to `most` times. Refused requests are not retried. An attempt that was
    interrupted by the death of a part of the session does not count as a retry. `failed` has the attempts of earlier pools, which count.
    """

    def __init__(
        self, most: int, failed: Mapping[RolloutKey, Sequence[AttemptFailed]], tell: Callable[[AttemptFailed], None] = lambda _: None
    ) -> None:
        """Takes the number of retries and the failed attempts of earlier pools. `tell` sends a failed attempt to the controller."""
        self._most, self._tell = most, tell
        self._earlier = {key: tuple(each.attempt for each in attempts) for key, attempts in failed.items()}
        self._tries = {key: sum(not each.interrupted for each in attempts) for key, attempts in failed.items()}

    def numbered(self, rollout: Rollout) -> Rollout:
        """Adds the number of an attempt, and the earlier attempts of its rollout, to the attempt's record."""
        earlier = self._earlier.get(rollout.key, ())
        return dataclasses.replace(rollout, attempt=len(earlier) + 1, earlier_attempts=earlier)

    def pause_after(self, rollout: Rollout) -> float | None:
        """Counts an attempt that ended without interruption. Returns the seconds until the next one, or None if there is none."""
        tries = self._tries[rollout.key] = self._tries.get(rollout.key, 0) + 1
        if rollout.status != "infra_error" or tries > self._most or refusal((*rollout.calls, *rollout.other_calls)):
            return None
        return pause(rollout, tries)

    def keep(self, key: RolloutKey, attempt: Attempt, *, interrupted: bool) -> None:
        """Keeps a failed attempt that another one will follow, and sends it to the controller."""
        self._earlier[key] = (*self._earlier.get(key, ()), attempt)
        self._tell(AttemptFailed(key, attempt, interrupted))

    def count(self, key: RolloutKey) -> int:
        """Returns the number of failed attempts of a rollout so far."""
        return len(self._earlier.get(key, ()))

    def forget(self, key: RolloutKey) -> None:
        """Drops the attempts of a rollout that has finished."""
        self._earlier.pop(key, None)


def pause(rollout: Rollout, attempt: int) -> float:
    """Returns the seconds to wait after an attempt (counted from 1): doubled each time, at least Retry-After, at most LONGEST_PAUSE."""
    requested = rollout.calls[-1].retry_after_s if rollout.calls else None
    return min(max(math.ldexp(PAUSE, attempt - 1), requested or 0), LONGEST_PAUSE)
