"""A block of the comparison of routers, before real engines."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from benchmarks.routing_help.engines import CONDITIONS, FIRST, engines
from benchmarks.routing_help.load import CALLS, SESSIONS, delays, make_round, run_block
from benchmarks.routing_help.routers import Sticky


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_block_in_which_engines_change(tmp_path: Path) -> None:
    """All calls of all sessions are answered while an engine leaves and another one joins. Afterwards the router has its first engines."""
    condition = next(each for each in CONDITIONS if each.is_changing)
    with engines(condition, tmp_path) as urls:
        router = Sticky(urls, tmp_path)
        try:
            await router.start()
            block = await run_block(make_round(1), condition, router, urls, "test")
            listed = (await asyncio.to_thread(httpx.get, f"{router.url}/workers")).json()["workers"]
            added = await delays({"own": router.url}, urls[0])
        finally:
            router.stop()

    assert SESSIONS == len(block.sessions)
    assert 0 == sum(each.failed for each in block.sessions)
    assert all(CALLS[0] <= each.calls <= CALLS[1] for each in block.sessions)
    assert 0 < block.hit_ratio < 1
    assert {urls[number] for number in FIRST} == {each["url"] for each in listed}
    assert ["own"] == [*added]
