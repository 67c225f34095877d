"""The KV cache: which blocks requests hold, which are cached, and which requests wait."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from pytest_agentbench.engine.token_blocks import BlockCache, Prompt


async def through(blocks: BlockCache, prompt: Prompt, answer: int = 0) -> int:
    """Runs a request to its end. Returns the number of prompt tokens that were cached."""
    async with blocks.reserve(prompt, answer) as room:
        return room.cached


async def test_common_beginnings_are_known() -> None:
    """A prompt is cached up to its first difference from an earlier one, and never completely."""
    blocks = BlockCache(100, 16)

    assert 0 == await through(blocks, Prompt(48, [1, 2, 3]))
    assert 32 == await through(blocks, Prompt(48, [1, 2, 3]))
    assert 48 == await through(blocks, Prompt(49, [1, 2, 3]))
    assert 16 == await through(blocks, Prompt(48, [1, 5, 3]))
    blocks.clear()
    assert 0 == await through(blocks, Prompt(48, [1, 2, 3]))


async def test_the_least_recent_and_ends_are_forgotten_first() -> None:
    """A full cache removes the least recently used blocks first. If they belong to one prompt, its last blocks are removed first."""
    blocks = BlockCache(5, 16)
    await through(blocks, Prompt(49, [1, 2, 3]))
    await through(blocks, Prompt(33, [7, 8]))

    assert 32 == await through(blocks, Prompt(49, [1, 2, 3]))


async def test_what_is_used_is_kept() -> None:
    """Repeating a prompt makes its blocks recently used again."""
    blocks = BlockCache(5, 16)
    for prompt in ([1, 2], [7, 8], [1, 2], [9]):
        await through(blocks, Prompt(33, prompt))

    assert 32 == await through(blocks, Prompt(33, [1, 2]))


async def test_shared_blocks_are_held_once() -> None:
    """Requests with equal beginnings share these blocks.

    Their ends and answers have own blocks. Blocks that no request holds are not counted as used.
    """
    blocks = BlockCache(100, 16)
    used = []
    async with AsyncExitStack() as running:
        for answer in (0, 40):
            await running.enter_async_context(blocks.reserve(Prompt(49, [1, 2, 3]), answer))
            used.append(blocks.used)

    assert [4, 4 + 3] == used  # 49 + 40 tokens need six blocks, three of which are already held.
    assert 0 == blocks.used


async def test_requests_wait_for_room() -> None:
    """Requests wait in order of arrival. A waiting request gets released blocks, and learns that it waited."""
    blocks = BlockCache(6, 16)
    order: list[tuple[str, bool]] = []

    async def request(name: str, prompt: Prompt) -> None:
        async with blocks.reserve(prompt, 0) as room:
            order.append((name, room.waited))

    async with blocks.reserve(Prompt(64, [1, 2, 3, 4]), 0):
        waiting = [asyncio.create_task(request(*each)) for each in (("large", Prompt(48, [7, 8, 9])), ("small", Prompt(16, [5])))]
        await asyncio.sleep(0)
        counts = blocks.used, blocks.waiting
    await asyncio.gather(*waiting)

    assert (4, 2) == counts
    assert [("large", True), ("small", False)] == order
    assert (0, 0) == (blocks.used, blocks.waiting)


async def test_a_request_that_gives_up_while_it_waits() -> None:
    """A request that gives up while waiting holds nothing, and the ones after it are served."""
    blocks = BlockCache(2, 16)
    async with blocks.reserve(Prompt(32, [1, 2]), 0):
        gone = asyncio.create_task(through(blocks, Prompt(32, [3, 4])))
        behind = asyncio.create_task(through(blocks, Prompt(32, [5, 6])))
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
    await behind

    assert (0, 0) == (blocks.used, blocks.waiting)


@pytest.mark.parametrize(("tokens", "fits"), [(32, True), (33, False)])
def test_what_never_fits(tokens: int, fits: bool) -> None:
    """`fits` is False for a request larger than the cache, which would wait for ever."""
    assert fits == BlockCache(2, 16).fits(tokens)


async def test_answers_can_be_kept() -> None:
    """The blocks of an answer are known when they are kept. Those at the end of the conversation are removed first."""
    blocks = BlockCache(5, 16)
    await through(blocks, Prompt(33, [1, 2]), 32)
    blocks.keep([1, 2, 3, 4])

    assert 64 == await through(blocks, Prompt(65, [1, 2, 3, 4]))
    await through(blocks, Prompt(17, [9]))
    assert 48 == await through(blocks, Prompt(65, [1, 2, 3, 4]))


async def test_kept_blocks_leave_room() -> None:
    """A kept block that another request holds is counted once, and what is kept does not exceed the cache."""
    blocks = BlockCache(4, 16)
    async with blocks.reserve(Prompt(33, [1, 2]), 0):
        blocks.keep([1, 2, 3, 4, 5])

        assert 3 == blocks.used
    assert 48 == await through(blocks, Prompt(64, [1, 2, 3, 4]))
