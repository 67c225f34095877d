"""Between two blocks of rollouts: the pool asks for the next arm, points the taps at it, and makes first calls where they are wanted."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Protocol

import aiohttp

from pytest_agentbench.errors import InfraError
from pytest_agentbench.llm.access import ModelAddress, Tap
from pytest_agentbench.records import Access, Json, LLMCall, Rollout, RolloutKey
from pytest_agentbench.rollouts.pool.addresses import Addresses
from pytest_agentbench.rollouts.pool.blocks import Block, arrange
from pytest_agentbench.rollouts.pool_config import BlockSettings
from pytest_agentbench.rollouts.protocol import Answered, BlockBegun, BlockEnded, ControllerQuestion, NoTurn, PoolNote, Turn, TurnWanted
from pytest_agentbench.rollouts.rollout import RolloutSetup, run_rollout
from pytest_agentbench.sandbox.factory import Sandboxes
from pytest_agentbench.suites.suite import Scenario


class Host(Protocol):
    """The pool, as far as turns need it."""

    session: aiohttp.ClientSession | None
    addresses: Addresses
    sandboxes: Sandboxes

    def tell(self, message: PoolNote) -> None: ...

    async def ask(self, question: ControllerQuestion[Answered]) -> tuple[Answered, bytes]: ...

    async def setup_of(self, key: RolloutKey) -> tuple[Scenario, RolloutSetup, float]:
        """What a rollout is made of, and its budget in seconds."""

    async def record(self, rollout: Rollout) -> bytes: ...


class BlockTransition:
    """The scheduler's way from a block to the next one."""

    def __init__(self, host: Host, settings: BlockSettings, concurrency: int) -> None:
        self._host, self._settings, self._concurrency = host, settings, concurrency
        self._told: asyncio.Future[Turn | NoTurn] | None = None
        self._number = 0

    def arrange(self, keys: Sequence[RolloutKey]) -> list[Block]:
        settings = self._settings
        return arrange(keys, settings.sides, self._concurrency, settings.own, in_sequence=settings.in_sequence)

    def told(self, message: Turn | NoTurn) -> None:
        """The controller's answer."""
        if self._told is not None and not self._told.done():
            self._told.set_result(message)

    async def enter(self, block: Block) -> str:
        """Makes all ready for a block; returns why its rollouts cannot run. Raises InfraError when tap or controller are gone."""
        self._told = asyncio.get_running_loop().create_future()
        self._host.tell(TurnWanted(block.arm, len(block.keys)))
        answer = await self._told
        if isinstance(answer, NoTurn):
            return answer.reason
        await self._host.addresses.point_at(answer.endpoint)
        self._host.addresses.salt = answer.salt
        self._number += 1
        primed = await self._prime(block) if self._settings.policy == "primed" else None
        await self._host.ask(BlockBegun(primed))
        return ""

    async def leave(self) -> None:
        await self._host.ask(BlockEnded())

    async def _prime(self, block: Block) -> int:
        """Makes the first call of each rollout; how many went well."""
        free = asyncio.Semaphore(block.concurrency)

        async def one(key: RolloutKey) -> bool:
            async with free:
                return await self._first_call(key)

        return sum(await asyncio.gather(*map(one, block.keys)))

    async def _first_call(self, key: RolloutKey) -> bool:
        """The agent itself makes it, and is answered no further one; what becomes of it then is not looked at."""
        try:
            scenario, setup, budget = await self._host.setup_of(key)
        except InfraError:  # its suite's code cannot be loaded, which the rollout itself will say
            return False
        tap = FirstCallOnly(self._host.addresses)
        rollout = await run_rollout(
            key, scenario, dataclasses.replace(setup, scorers={}), tap, self._host.session, budget, self._host.sandboxes
        )
        is_successful = any(call.error_kind is None for call in rollout.calls)  # there is one at most that was relayed
        status, reason = ("ok", "") if is_successful else ("infra_error", rollout.reason or "no call was made")
        name = f"{key} before block {self._number}"
        primer = dataclasses.replace(
            rollout, suite="", scenario=name, variant="default", trial=1, kind="primer", status=status, reason=reason
        )
        await self._host.record(primer)
        return is_successful


class FirstCallOnly:
    """A tap that answers one call of an agent, and nothing that a judge is asked."""

    def __init__(self, tap: Tap) -> None:
        self._tap = tap

    async def open(self, key: RolloutKey, access: Access) -> ModelAddress:
        return await self._tap.open(key, dataclasses.replace(access, calls=1))

    async def said(self, id: str) -> list[Json]:
        return await self._tap.said(id)

    async def close(self, id: str) -> Sequence[LLMCall]:
        return await self._tap.close(id)
