"""The engine's speed: due times of tokens, and the request queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

import aiohttp
import pytest

from pytest_agentbench.engine.answer import EnginePace, RequestSlots, TimedBytes, batches
from pytest_agentbench.engine.chat import Delivery, Stall
from pytest_agentbench.records import Json

HELLO: Json = {"model": "embedded-lexical", "messages": [{"role": "user", "content": "Hello"}]}


def test_due_times_are_absolute() -> None:
    """The first token is due at TTFT, and each later one ITL after the one before."""
    assert pytest.approx([0.2, 0.21, 0.22]) == EnginePace(200, 10, 0, 0).due(3, Delivery(), b"")


def test_delivery_overrides_the_pace_and_stalls() -> None:
    """An answer may override the times of the engine, and a stall delays everything after it."""
    delivery = Delivery(ttft_ms=100, itl_ms=1, stall=Stall(after=2, ms=500))

    assert pytest.approx([0.1, 0.101, 0.602, 0.603]) == EnginePace(200, 10, 0, 0).due(4, delivery, b"")


def test_jitter_is_bounded_and_repeats() -> None:
    """Jitter stays within its share, is equal for equal requests and seeds, and differs otherwise."""
    pace = EnginePace(100, 10, 0.5, 7)
    first, *rest = pace.due(50, Delivery(), b"request")
    gaps = [later - earlier for earlier, later in zip([first, *rest], rest, strict=False)]

    assert 0.05 <= first <= 0.15
    assert all(0.005 <= gap <= 0.015001 for gap in gaps)
    assert 1 < len({round(gap, 6) for gap in gaps})
    assert [first, *rest] == pace.due(50, Delivery(), b"request")
    assert [first, *rest] != pace.due(50, Delivery(), b"another")
    assert [first, *rest] != EnginePace(100, 10, 0.5, 8).due(50, Delivery(), b"request")


async def test_events_that_are_due_form_a_batch() -> None:
    """Events that are due at the same time form one batch. A later event is in another batch, and not sent early."""
    now = asyncio.get_running_loop().time
    started = now()
    events = [TimedBytes(b"a", 0), TimedBytes(b"b", 0), TimedBytes(b"c", 0.05), TimedBytes(b"d", 0.05)]
    seen = [([event.data for event in batch], now() - started >= batch[-1].due) async for batch in batches(events, started)]

    assert [([b"a", b"b"], True), ([b"c", b"d"], True)] == seen


async def test_slots_are_first_come_first_served() -> None:
    """Requests over the limit wait in order of arrival. A request that gives up frees its place in the queue."""
    slots, order = RequestSlots(1), []

    async def use(name: str) -> None:
        async with slots as waited:
            order.append((name, waited))

    async with slots:
        tasks = [asyncio.create_task(use(name)) for name in "abc"]
        await asyncio.sleep(0)

        assert (1, 3) == (slots.running, slots.waiting)

        tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

    assert [("a", True), ("c", True)] == order
    assert (0, 0) == (slots.running, slots.waiting)


async def _gauge(session: aiohttp.ClientSession, url: str, name: str) -> float:
    async with session.get(f"{url}/metrics") as response:
        lines = (await response.text()).splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"vllm:{name}"))


async def _until(session: aiohttp.ClientSession, url: str, running: int, waiting: int) -> tuple[float, float]:
    """Returns the two gauges when they have the expected values. The timeout of the test ends the wait."""
    while True:
        seen = await _gauge(session, url, "num_requests_running"), await _gauge(session, url, "num_requests_waiting")
        if seen == (running, waiting):
            return seen
        await asyncio.sleep(0.02)


async def test_queue_shows_in_metrics_and_a_gone_client_frees_its_slot(serve: Callable[..., str]) -> None:
    """With two slots the third request waits until a client disconnects. In the end no request is left."""
    url = serve(max_concurrency=2, ttft_ms=600_000)
    async with asyncio.timeout(30), aiohttp.ClientSession() as session, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(aiohttp.ClientSession()) for _ in range(3)]
        tasks = []
        for sent, client in enumerate(clients, start=1):
            tasks.append(asyncio.create_task(client.post(f"{url}/v1/chat/completions", json=HELLO).__aenter__()))
            await _until(session, url, min(2, sent), max(0, sent - 2))
        held = await _gauge(session, url, "kv_cache_usage_perc")
        tasks[0].cancel()

        assert (2, 0) == await _until(session, url, 2, 0)
        assert 0 < held < 1

        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

        assert (0, 0) == await _until(session, url, 0, 0)
        assert 0 == await _gauge(session, url, "kv_cache_usage_perc")
        async with session.get(f"{url}/metrics") as response:
            assert 'vllm:request_success_total{finished_reason="abort",model_name="embedded-lexical"} 3.0' in await response.text()


async def test_requests_wait_for_free_blocks(serve: Callable[..., str]) -> None:
    """A request holds its blocks until it ends. A request without enough free blocks waits for them."""
    long = {**HELLO, "messages": [{"role": "user", "content": "alpha beta gamma delta " * 20}]}
    url = serve(kv_blocks=12, block_size=16, ttft_ms=600_000)
    async with asyncio.timeout(30), aiohttp.ClientSession() as session, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(aiohttp.ClientSession()) for _ in range(2)]
        other = {**long, "messages": [{"role": "user", "content": "nothing of this is shared with it " * 10}]}
        tasks = []
        for body, client, seen in zip((long, other), clients, ((1, 0), (1, 1)), strict=True):
            tasks.append(asyncio.create_task(client.post(f"{url}/v1/chat/completions", json=body).__aenter__()))
            await _until(session, url, *seen)
        held = await _gauge(session, url, "kv_cache_usage_perc")
        tasks[0].cancel()

        assert (1, 0) == await _until(session, url, 1, 0)
        assert 0.5 < held <= 1
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_first_token_is_not_early(serve: Callable[..., str]) -> None:
    """In the engine's own histogram the first token is not before TTFT, and time in the queue is added."""
    url = serve(ttft_ms=50, max_concurrency=1)
    async with aiohttp.ClientSession() as session:

        async def post() -> None:
            async with session.post(f"{url}/v1/chat/completions", json=HELLO) as response:
                await response.read()

        await asyncio.gather(post(), post())

        # One request takes 50 ms. The other waits for it, so it takes twice as long.
        assert 0.145 <= await _gauge(session, url, "time_to_first_token_seconds_sum")
