"""Whose turn it is: between two blocks of rollouts the arm is changed, its cache is made ready, and its counters are read."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace

from pytest_agentbench.backends import cache_state
from pytest_agentbench.backends.backend import Backend
from pytest_agentbench.backends.cache_state import CacheBlock
from pytest_agentbench.backends.telemetry.engine_stats import prefix_cache
from pytest_agentbench.errors import AgentbenchError, BackendError
from pytest_agentbench.records import Endpoint
from pytest_agentbench.rollouts.protocol import NoTurn, Turn
from pytest_agentbench.runs.arm_results import ArmFacts
from pytest_agentbench.suites.arms import COLD


class BlockTurns:
    """The blocks of one session, as its controller sees them. One block at a time, told by the pool."""

    def __init__(self, backend: Backend, policy: str) -> None:
        self.backend, self.policy = backend, policy
        self.blocks: list[CacheBlock] = []
        self._before: cache_state.Counters = {}
        self._is_open = False
        self._began = 0.0  # seconds, time.monotonic()
        self._salted: dict[str, str] = {}  # arm whose cache cannot be reset -> why

    def begin(self, endpoint: Endpoint, arm: str, rollouts: int) -> tuple[Turn | NoTurn, bool]:
        """(what the pool is told, whether the arm was started for this). `endpoint` is the session's, for a session of one backend."""
        self.close()
        try:
            endpoint, swapped = self.backend.turn(arm, endpoint)
        except AgentbenchError as error:
            return NoTurn(str(error)), False
        block = CacheBlock(arm, rollouts)
        if self.policy == COLD:
            block = self._emptied(endpoint, block)
        if self.blocks and self.blocks[-1].seconds is None:
            self.blocks.pop()  # it was never measured: a tap died before it was pointed at the arm
        self.blocks.append(block)
        return Turn(endpoint, block.salt), swapped

    def measure(self, primed: int | None) -> None:
        """The rollouts of the block begin; so many of them had their first call made before."""
        self.blocks[-1] = replace(self.blocks[-1], primed=primed)
        self._before, self._is_open, self._began = self._counters(), True, time.monotonic()

    def close(self) -> None:
        """The rollouts of the block have ended. May be called without one, and twice."""
        if self._is_open:
            self._is_open = False
            seconds = time.monotonic() - self._began
            hits = prefix_cache(cache_state.moved(self._before, self._counters()))
            self.blocks[-1] = replace(self.blocks[-1], seconds=seconds, prefix_cache=hits)

    @property
    def why_salted(self) -> dict[str, str]:
        """Arm -> why its cache could not be reset."""
        return dict(self._salted)

    def facts(self, failure: str) -> ArmFacts:
        """`failure` is the session's."""
        backend = self.backend
        return ArmFacts("" if backend.failures else failure, backend.failures, backend.load_s, backend.in_sequence)

    def _emptied(self, endpoint: Endpoint, block: CacheBlock) -> CacheBlock:
        """A block with an empty cache: by a reset, or else by a salt that no other block has."""
        arm = block.arm
        if arm not in self._salted:
            try:
                done = cache_state.reset(endpoint, self.backend.sources(arm))
            except BackendError as error:
                done = cache_state.Reset((), str(error))
            block = replace(block, reset=done.done)
            if done.why_not:
                self._salted[arm] = done.why_not
        return replace(block, salt=f"[benchmark run {secrets.token_hex(6)}]") if arm in self._salted else block

    def _counters(self) -> cache_state.Counters:
        return cache_state.counters(self.backend.sources(self.blocks[-1].arm).targets)
