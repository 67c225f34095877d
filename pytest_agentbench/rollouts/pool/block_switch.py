"""Switches from one block of rollouts to the next in an A/B session. A block has rollouts of one arm (a setting under comparison)."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence

from pytest_agentbench.errors import InfraError
from pytest_agentbench.llm.access import ModelAddress, Tap
from pytest_agentbench.records import Access, Json, KeptCall, LLMCall, Rollout, RolloutKey
from pytest_agentbench.rollouts.pool.blocks import Block, arrange
from pytest_agentbench.rollouts.pool.controller_link import Link
from pytest_agentbench.rollouts.pool.failed_attempts import Interrupted
from pytest_agentbench.rollouts.pool.runner import Runner
from pytest_agentbench.rollouts.pool.scheduler import WriteRecord
from pytest_agentbench.rollouts.protocol import BlockBegun, BlockEnded, BlockSettings, NoTurn, Turn
from pytest_agentbench.runs.attempts import PrepareBlock
from pytest_agentbench.suites.arms import new_salt


class BlockTransition:
    """Ends a block of rollouts and begins the next one, when the scheduler asks.

    The controller prepares the next arm, and the taps are pointed at it. If the cache policy is `primed`, the first call of each rollout is
    made before the block begins. With `warm_up`, some first calls are made before the first block.
    """

    def __init__(self, runner: Runner, link: Link, record: WriteRecord, settings: BlockSettings, concurrency: int, blocks: int) -> None:
        """Takes the pool's objects that a switch needs, and the number of `blocks` that earlier pools of the session have begun."""
        self._runner, self._link, self._record = runner, link, record
        self._settings, self._concurrency, self._number = settings, concurrency, blocks
        # Rollouts whose first calls are made before the first block; None as long as no blocks are known.
        self._warm_up_keys: list[RolloutKey] | None = None if settings.warm_up else []
        self._pending_reply: asyncio.Future[Turn | NoTurn] | None = None

    def arrange(self, keys: Sequence[RolloutKey]) -> list[Block]:
        settings = self._settings
        blocks = arrange(keys, settings.origins, self._concurrency, settings.own, in_sequence=settings.in_sequence)
        if self._warm_up_keys is None and blocks:
            self._warm_up_keys = _spread([key for block in blocks if block.arm == blocks[0].arm for key in block.keys], self._concurrency)
        return blocks

    def answer(self, message: Turn | NoTurn) -> None:
        """Takes the controller's message that the next block's arm is ready, or cannot run. `enter` waits for it."""
        if self._pending_reply is not None and not self._pending_reply.done():
            self._pending_reply.set_result(message)

    async def enter(self, block: Block) -> str:
        """Prepares the arm of a block. Returns an empty string if its rollouts can run, otherwise why not.

        Raises:
            Interrupted: A part of the session died meanwhile.
            InfraError: The block cannot be entered for another reason.
        """
        key = block.keys[0]
        before = self._runner.outages.count(key)
        try:
            return await self._enter(block)
        except InfraError as error:
            if await self._runner.outages.explain(key, (), before):
                raise Interrupted(Rollout(*key, status="infra_error", reason=str(error))) from error
            raise

    async def _enter(self, block: Block) -> str:
        answer = await self._prepared(block)
        if self._warm_up_keys and isinstance(answer, Turn):
            await self._warm_up(block, answer, self._warm_up_keys)
            self._warm_up_keys = []
            answer = await self._prepared(block)  # The warm-up has filled the cache.
        if isinstance(answer, NoTurn):
            return answer.reason
        await self._runner.point_at(answer.endpoint, salt=answer.salt)
        self._number += 1
        primed = await self._prime(block) if self._settings.policy == "primed" else None
        await self._link.ask(BlockBegun(primed))
        return ""

    async def _prepared(self, block: Block) -> Turn | NoTurn:
        """Has the controller prepare the arm of a block. Returns its answer."""
        self._pending_reply = asyncio.get_running_loop().create_future()
        self._link.tell(PrepareBlock(block.arm, len(block.keys)))
        return await self._pending_reply

    async def _warm_up(self, block: Block, turn: Turn, keys: Sequence[RolloutKey]) -> None:
        """Makes the first calls of some rollouts in the arm of the first block.

        The first calls of a session are slower, because the server and this process open connections and load code. A text of its own
        before the prompts keeps them out of the prefix cache of later calls. They are of rollouts from all rounds, because a server may
        also remember something of a scenario, and each arm is the first with half of them.
        """
        await self._runner.point_at(turn.endpoint, salt=new_salt())
        await self._prime(dataclasses.replace(block, keys=tuple(keys)))

    async def leave(self) -> None:
        await self._link.ask(BlockEnded())

    async def _prime(self, block: Block) -> int:
        """Makes the first call of each rollout of a block, without measuring it. Returns how many calls succeeded."""
        free = asyncio.Semaphore(block.concurrency)

        async def one(key: RolloutKey) -> bool:
            async with free:
                return await self._first_call(key)

        return sum(await asyncio.gather(*map(one, block.keys)))

    async def _first_call(self, key: RolloutKey) -> bool:
        """Runs a rollout of which the tap forwards only the first call. Returns whether that succeeded.

        The record has the kind `primer`.
        """
        rollout = await self._runner.first_call(key, FirstCallOnly(self._runner.addresses))
        if rollout is None:
            return False
        is_successful = any(call.error_kind is None for call in rollout.calls)  # At most one call was forwarded.
        status, reason = ("ok", "") if is_successful else ("infra_error", rollout.reason or "no call was made")
        name = f"{key} before block {self._number}"
        primer = dataclasses.replace(
            rollout, suite="", scenario=name, variant="default", trial=1, kind="primer", status=status, reason=reason
        )
        await self._record(primer)
        return is_successful


def _spread(keys: Sequence[RolloutKey], count: int) -> list[RolloutKey]:
    """Returns so many keys, or all if there are fewer, at equal distances."""
    return [keys[place * len(keys) // count] for place in range(count)] if len(keys) > count else [*keys]


class FirstCallOnly:
    """Wraps a tap, and opens each address for one call. The tap refuses further calls there."""

    def __init__(self, tap: Tap) -> None:
        self._tap = tap

    async def open(self, key: RolloutKey, access: Access) -> ModelAddress:
        return await self._tap.open(key, dataclasses.replace(access, calls=1))

    async def said(self, id: str) -> list[Json]:
        return await self._tap.said(id)

    async def close(self, id: str) -> Sequence[LLMCall]:
        return await self._tap.close(id)

    async def conversation(self, key: RolloutKey, calls: Sequence[KeptCall]) -> list[Json]:
        return await self._tap.conversation(key, calls)
