"""Attempts that failed: whether a part of the session died, or the server refuses every call of a group; and which rollouts get another
attempt, and when.
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

#: How calls end that nobody answers.
UNANSWERED = ("connect", "timeout_connect", "timeout_first_token", "timeout_idle", "cut")
GRACE = 0.05  # seconds between the last bytes of a killed process and the moment at which its death can be known


class Interrupted(InfraError):
    """An attempt failed because a part of the session died. It is repeated, and does not count as a retry."""

    def __init__(self, rollout: Rollout) -> None:
        """`rollout` is the record of the attempt."""
        super().__init__(rollout.reason)
        self.rollout = rollout


class Outages:
    """Counts how often parts of the session went away, for the rollouts that use them.

    An attempt remembers `count` when it begins. If it has failed, `explain` asks the controller whether a part has died, unless the calls
    of the attempt were all answered, and then compares the count. Attempts that fail together ask once.
    """

    def __init__(self, tell: Callable[[PoolNote], None]) -> None:
        self._tell = tell
        self._unavailable: Mapping[str, str] = {}
        self._counts: Counter[str] = Counter()  # group of rollouts -> times that a part which only they use went away; empty text: any part
        self._check: asyncio.Task[None] | None = None
        self._check_answered = asyncio.Event()
        self._is_over = False

    def update(self, unavailable: Mapping[str, str]) -> None:
        """Takes the parts that are away now -> group of the only rollouts that use it, or an empty text."""
        self._counts.update(group for part, group in unavailable.items() if part not in self._unavailable)
        self._unavailable = unavailable

    def add(self, part: str, group: str) -> None:
        """Takes one more part that is away."""
        self.update({**self._unavailable, part: group})

    def count(self, key: RolloutKey) -> int:
        """Returns how many outages could have interrupted an attempt at this rollout so far."""
        return self._counts[""] + self._counts[key.group]

    async def explain(self, key: RolloutKey, calls: Sequence[LLMCall], before: int) -> bool:
        """Returns whether a failed attempt was interrupted; `before` is the count when it began, `calls` are all that it made."""
        if not self._is_over and (not calls or any(call.error_kind in UNANSWERED for call in calls)):
            if self._check is None or self._check.done():
                self._check = asyncio.create_task(self._ask())
            await asyncio.shield(self._check)
        return self.count(key) > before

    async def _ask(self) -> None:
        await asyncio.sleep(GRACE)
        if self._is_over:  # since the pause began
            return
        self._check_answered.clear()
        self._tell(CheckProcesses())
        await self._check_answered.wait()

    def answer(self) -> None:
        """Takes the answer to `CheckProcesses`: every death that is known has been reported by `update`."""
        self._check_answered.set()

    def end(self) -> None:
        """Ends the waiting for answers: the controller sends none any more."""
        self._is_over = True
        self._check_answered.set()


@dataclass
class SuiteRefusals:
    """What came of a suite under one variant so far."""

    answered: bool = False  # a call of it went well
    refused: dict[str, str] = field(default_factory=dict)  # scenario -> the server's messages
    undecided: set[RolloutKey] | None = None  # rollouts that may still be answered; None: too few were refused to wait for them


class Refusals:
    """The groups of a session."""

    def __init__(self) -> None:
        self._groups: dict[str, SuiteRefusals] = {}

    def after(self, rollout: Rollout, planned: Iterable[RolloutKey], running: Iterable[RolloutKey]) -> str:
        """Why no further rollout of its group is to be tried, now that this one has ended; empty where some are.

        A group is given up when two of its scenarios, or its only one, were refused, no call of it was answered, and nothing runs any
        more that did so at that time: a refusal comes sooner than an answer.
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
    return f"{messages[0]}; the server refused {refused} of {group} and answered none, so no further one is tried"


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
    requested = rollout.calls[-1].retry_after_s if rollout.calls else None
    return min(max(math.ldexp(PAUSE, attempt - 1), requested or 0), LONGEST_PAUSE)
