"""Whether an attempt failed because a part of the session died while it ran."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from pytest_agentbench.errors import InfraError
from pytest_agentbench.records import LLMCall, Rollout, RolloutKey
from pytest_agentbench.rollouts.protocol import LookWanted, PoolNote

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
        self._away: Mapping[str, str] = {}
        self._counts: Counter[str] = Counter()  # group of rollouts -> times that a part which only they use went away; empty text: any part
        self._asking: asyncio.Task[None] | None = None
        self._answered = asyncio.Event()
        self._is_over = False

    def update(self, away: Mapping[str, str]) -> None:
        """Takes the parts that are away now -> group of the only rollouts that use it, or an empty text."""
        self._counts.update(group for part, group in away.items() if part not in self._away)
        self._away = away

    def add(self, part: str, group: str) -> None:
        """Takes one more part that is away."""
        self.update({**self._away, part: group})

    def count(self, key: RolloutKey) -> int:
        """Returns how many outages could have interrupted an attempt at this rollout so far."""
        return self._counts[""] + self._counts[key.group]

    async def explain(self, key: RolloutKey, calls: Sequence[LLMCall], before: int) -> bool:
        """Returns whether a failed attempt was interrupted; `before` is the count when it began, `calls` are all that it made."""
        if not self._is_over and (not calls or any(call.error_kind in UNANSWERED for call in calls)):
            if self._asking is None or self._asking.done():
                self._asking = asyncio.create_task(self._ask())
            await asyncio.shield(self._asking)
        return self.count(key) > before

    async def _ask(self) -> None:
        await asyncio.sleep(GRACE)
        if self._is_over:  # since the pause began
            return
        self._answered.clear()
        self._tell(LookWanted())
        await self._answered.wait()

    def answer(self) -> None:
        """Takes the answer to `LookWanted`: every death that is known has been reported by `update`."""
        self._answered.set()

    def end(self) -> None:
        """Ends the waiting for answers: the controller sends none any more."""
        self._is_over = True
        self._answered.set()
