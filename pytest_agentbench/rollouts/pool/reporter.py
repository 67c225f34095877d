"""Tells the controller how attempts go, and asks it whether one that failed was interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from pytest_agentbench.records import Attempt, Rollout, RolloutKey
from pytest_agentbench.rollouts.inherited import AttemptBegun, AttemptFailed
from pytest_agentbench.rollouts.protocol import LookWanted, PlanSettled, PoolNote

#: How calls end that nobody answers.
UNANSWERED = ("connect", "timeout_connect", "timeout_first_token", "timeout_idle", "cut")
GRACE = 0.05  # seconds between the last bytes of a process that was killed and the moment at which anybody can know it


class Reporter:
    """Whom the scheduler reports to. Rollouts that fail together ask once."""

    def __init__(self, tell: Callable[[PoolNote], None]) -> None:
        self._tell = tell
        self._look: asyncio.Task[None] | None = None
        self._looked = asyncio.Event()
        self._is_over = False

    def begun(self, key: RolloutKey) -> None:
        self._tell(AttemptBegun(key))

    def failed(self, key: RolloutKey, attempt: Attempt, *, interrupted: bool) -> None:
        self._tell(AttemptFailed(key, attempt, interrupted))

    async def looked(self, rollout: Rollout) -> None:
        """Asks where the tap could not say what became of the calls, or nobody answered one."""
        calls = (*rollout.calls, *rollout.other_calls)
        if self._is_over or (calls and not any(call.error_kind in UNANSWERED for call in calls)):
            return
        if self._look is None or self._look.done():
            self._look = asyncio.create_task(self._ask())
        await asyncio.shield(self._look)

    async def _ask(self) -> None:
        await asyncio.sleep(GRACE)
        self._looked.clear()
        self._tell(LookWanted())
        await self._looked.wait()

    def answer(self) -> None:
        """All that is known has been said."""
        self._looked.set()

    def end(self) -> None:
        """Nobody answers any more."""
        self._is_over = True
        self._looked.set()

    async def rested(self, settled: Awaitable[bool]) -> None:
        """Tells that all is over that was planned, and whether each rollout has a record."""
        self._tell(PlanSettled(await settled))
