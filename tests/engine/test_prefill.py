"""Prompts take time, one after the other, and cached tokens take none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from pytest_agentbench.engine.prefill import Prefill
from pytest_agentbench.records import Json

Ask = Callable[..., httpx.Response]


def test_time_of_a_prompt() -> None:
    """The time has a part for each thousand tokens and a part for their square."""
    reference = Prefill(57, 4.4)

    assert pytest.approx([0, 0.0614, 0.1316, 1.010]) == [reference.seconds(tokens) for tokens in (0, 1000, 2000, 10_000)]


async def test_without_a_cost_it_does_not_wait() -> None:
    """By default a prompt takes no time, also while another one waits."""
    assert not await Prefill(0, 0).compute(100_000)


async def test_one_prompt_at_a_time() -> None:
    """Prompts are computed in the order of their arrival. A request that gives up while it waits, or while it is computed, delays none."""
    prefill, order = Prefill(1, 0), []

    async def compute(name: str, tokens: int) -> None:
        assert await prefill.compute(tokens)
        order.append(name)

    tasks = [asyncio.create_task(compute(name, tokens)) for name, tokens in (("a", 20_000), ("b", 0), ("c", 0), ("d", 0))]
    await asyncio.sleep(0)

    assert 3 == prefill.waiting

    tasks[0].cancel()
    tasks[2].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

    assert (["b", "d"], 0) == (order, prefill.waiting)


def _times(url: str) -> tuple[float, float]:
    """Returns sum and count of vLLM's TTFT."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    parts = [
        line.rpartition(" ")[2]
        for line in lines
        if line.startswith(("vllm:time_to_first_token_seconds_sum", "vllm:time_to_first_token_seconds_count"))
    ]
    one, other = sorted(map(float, parts))
    return one, other


def _question(words: int) -> list[Json]:
    return [{"role": "user", "content": "money " * words}]


def test_hits_save_time(serve: Callable[..., str], ask: Ask) -> None:
    """A prompt takes at least the time of its tokens that are not cached: the second time, that of the last tokens only."""
    url = serve(prefill_ms_per_1k=500)
    miss, hit = (ask(url, messages=_question(2000), max_tokens=1) for _ in range(2))
    seconds = [response.elapsed.total_seconds() for response in (miss, hit)]
    computed = [_computed(response.json()["usage"]) for response in (miss, hit)]

    assert computed[0] > 2000
    assert computed[1] <= 16
    assert seconds[0] >= computed[0] * 0.0005
    assert seconds[1] < seconds[0]
