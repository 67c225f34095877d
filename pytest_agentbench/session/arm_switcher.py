"""Prepares the backend for each block: a series of rollouts of one arm (a setting under comparison)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from pytest_agentbench.backends import cache_state
from pytest_agentbench.backends.backend import Backend
from pytest_agentbench.backends.cache_state import CacheBlock
from pytest_agentbench.backends.telemetry.engine_stats import prefix_cache
from pytest_agentbench.errors import AgentbenchError, BackendError
from pytest_agentbench.records import Endpoint
from pytest_agentbench.rollouts.protocol import NoTurn, Turn
from pytest_agentbench.runs.results import ArmFacts
from pytest_agentbench.suites.arms import COLD, new_salt


class ArmSwitcher:
    """Prepares the backend for each block: rollouts of one arm (a setting under comparison) in a row. Records its cache hits and duration.

    The pool (the process that runs rollouts) announces each block, one at a time. `begin` switches to the block's arm and empties the
    cache if the policy is `cold`. `measure` starts the measurement and `close` ends it.
    """

    def __init__(self, backend: Backend, policy: str, notify: Callable[[str], None] = lambda _: None) -> None:
        """Creates the object. `notify` shows a sentence to the user at once."""
        self.backend, self.policy, self._notify = backend, policy, notify
        self.blocks: list[CacheBlock] = []
        self._before: cache_state.Counters = {}
        self._is_open = False
        self._began = 0.0  # seconds, time.monotonic()
        self._lacking: dict[str, str] = {}  # arm that lacks workers -> sentence
        self._salted: dict[str, str] = {}  # arm whose cache cannot be reset -> reason

    def begin(self, endpoint: Endpoint, arm: str, rollouts: int) -> tuple[Turn | NoTurn, bool]:
        """Prepares an arm for its next block of rollouts. Returns the answer for the pool, and whether the arm was started for this block.

        The answer has the arm's endpoint and salt (unique text in prompts, against cache hits), or the reason why the arm cannot run.
        `endpoint` is the session's, which all arms share if there is only one backend.
        """
        self.close()
        try:
            endpoint, swapped = self.backend.turn(arm, endpoint)
        except AgentbenchError as error:
            return NoTurn(str(error)), False
        self.count_workers(arm)
        block = CacheBlock(arm, rollouts)
        if self.policy == COLD:
            block = self._with_empty_cache(endpoint, block)
        if self.blocks and self.blocks[-1].seconds is None:
            self.blocks.pop()  # A tap died before the block could be measured.
        self.blocks.append(block)
        return Turn(endpoint, block.salt), swapped

    def stops_an_arm(self, arm: str) -> bool:
        """Returns whether `begin` would stop the backend of another arm, because the arms run in sequence."""
        return self.backend.in_sequence and bool(self.blocks) and self.blocks[-1].arm != arm

    def measure(self, primed: int | None) -> None:
        """Starts to measure cache hits and duration of the block.

        `primed` is the number of rollouts whose first call was made before the block, to fill the cache; None if the policy differs.
        """
        self.blocks[-1] = replace(self.blocks[-1], primed=primed)
        self._before, self._is_open, self._began = self._counters(), True, time.monotonic()

    def close(self) -> None:
        """Ends the measurement of the block. Does nothing if none is being measured."""
        if self._is_open:
            self._is_open = False
            seconds = time.monotonic() - self._began
            hits = prefix_cache(cache_state.moved(self._before, self._counters()))
            self.blocks[-1] = replace(self.blocks[-1], seconds=seconds, prefix_cache=hits)

    @property
    def why_salted(self) -> dict[str, str]:
        """Arm whose prompts get a salt (a unique text against cache hits), because its cache could not be reset -> reason."""
        return dict(self._salted)

    def count_workers(self, arm: str) -> None:
        """Counts the workers of an arm that is up. If some are missing, tells the user, and notes that the arm was not what it should be.

        The arm's rollouts run on, because its other workers still answer. Its results are compared with no other arm.
        """
        if arm in self._lacking or arm in self.backend.failures or not (why := self.backend.missing_workers(arm)):
            return
        rollouts = sum(block.rollouts for block in self.blocks if block.arm == arm)
        self._lacking[arm] = f"{f'arm {arm}: ' if arm else ''}after {rollouts} rollouts, {why}"
        self._notify(self._lacking[arm])

    def count_last(self) -> None:
        """Counts the workers of all arms that had a block. To be called when no rollout runs any more."""
        for arm in dict.fromkeys(block.arm for block in self.blocks):
            self.count_workers(arm)

    @property
    def failures(self) -> dict[str, str]:
        """Arm that did not start, was lost, or lacked workers -> reason."""
        return {**self._lacking, **self.backend.failures}

    def facts(self, failure: str) -> ArmFacts:
        """Returns which arms failed, and how long each took to start. `failure` is the reason why the session failed, if it did."""
        backend = self.backend
        return ArmFacts("" if self.failures else failure, self.failures, backend.load_s, backend.in_sequence)

    def _with_empty_cache(self, endpoint: Endpoint, block: CacheBlock) -> CacheBlock:
        """Empties the cache of a block's arm. Returns the block's record.

        If a part of the cache cannot be emptied, the record has a salt: a unique text for the block's prompts, so that none of them is in
        the cache. All later blocks of the arm get one, too.
        """
        arm = block.arm
        try:
            done = cache_state.reset(endpoint, self.backend.sources(arm))
        except BackendError as error:
            done = cache_state.Reset((), str(error))
        if done.why_not:
            self._salted.setdefault(arm, done.why_not)
        salt = new_salt() if arm in self._salted else ""
        return replace(block, reset=done.done, salt=salt)

    def _counters(self) -> cache_state.Counters:
        return cache_state.counters(self.backend.sources(self.blocks[-1].arm).targets)
