"""Prompts take time, one after the other, and cached tokens take none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

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
    """By default a prompt takes no time."""
    assert not await Prefill(0, 0).compute(100_000)


async def test_one_prompt_at_a_time() -> None:
    """Prompts are computed in the order of their arrival. A request that gives up, whether it waits or is computed, delays no other."""
    prefill, order = Prefill(60_000, 0), []

    async def compute(name: str, tokens: int) -> None:
        assert await prefill.compute(tokens)
        order.append(name)

    tasks = [asyncio.create_task(compute(name, tokens)) for name, tokens in (("a", 60_000), ("b", 0), ("c", 0), ("d", 0))]
    await asyncio.sleep(0)

    assert 3 == prefill.waiting

    tasks[0].cancel()
    tasks[2].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

    assert (["b", "d"], 0) == (order, prefill.waiting)


def test_hits_save_time(serve: Callable[..., str], ask: Ask) -> None:
    """Only tokens that are not cached take time: a short question and then a long conversation are answered, another long one is not.

    A prompt of 2,000 tokens takes 800 seconds here, and one of 50 tokens half a second. The answer to the question fills the cache.
    """
    url = serve(prefill_ms_per_1k2=200_000, cache_answers=True)
    question: list[Json] = [{"role": "user", "content": "Hello"}]
    answer = ask(url, messages=question, max_tokens=2000, ignore_eos=True).json()
    conversation = [*question, answer["choices"][0]["message"], {"role": "user", "content": "Thanks"}]
    usage = ask(url, messages=conversation, max_tokens=1).json()["usage"]

    assert usage["prompt_tokens"] > 2000
    assert usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"] < 50
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{url}/v1/chat/completions",
            json={"model": "embedded-lexical", "messages": [{"role": "user", "content": "money " * 2000}]},
            timeout=1,
        )


async def test_waiting_prompts_show_in_the_load(serve: Callable[..., str]) -> None:
    """A request that waits for the computation of another prompt counts as waiting."""
    url = serve(prefill_ms_per_1k=6_000_000)
    body = {"model": "embedded-lexical", "messages": [{"role": "user", "content": "money " * 2000}]}
    async with httpx.AsyncClient(timeout=60) as client, asyncio.timeout(30):
        tasks = [asyncio.create_task(client.post(f"{url}/v1/chat/completions", json=body)) for _ in range(3)]
        load: Json = {}
        while load.get("num_total_reqs") != 3:
            (load,) = (await client.get(f"{url}/v1/loads")).json()["loads"]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    assert (1, 2) == (load["num_running_reqs"], load["num_waiting_reqs"])
