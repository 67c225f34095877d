"""Real stacks take the labels, tell what they are asked, and are told of a rollout's end."""

from __future__ import annotations

import asyncio
from dataclasses import asdict

import aiohttp
import pytest

from pytest_agentbench.records import Endpoint, Json, LLMCall, RolloutKey
from pytest_agentbench.rollouts.pool.announcements import Announcer
from pytest_agentbench.runs.attempts import RolloutTally
from tests.servers.real_server import Server, ask
from tests.tap.peers import Tap

LABELS: Json = {"kind": "dynamo", "priority": 1, "osl": 8, "release": True}
HELLO: Json = {"model": "tiny", "messages": [{"role": "user", "content": "Hello there."}], "max_tokens": 8}
CALLS = {
    "/chat/completions": HELLO,
    "/completions": {"model": "tiny", "prompt": "Hello there.", "max_tokens": 8},
    "/responses": {"model": "tiny", "input": "Hello there.", "max_output_tokens": 8},
}


async def labelled(server: Server, tap: Tap, calls: dict[str, Json]) -> tuple[list[LLMCall], Announcer]:
    """Calls of one rollout, which is then over."""
    async with aiohttp.ClientSession() as session:
        stack = Announcer(Endpoint(server.url, "tiny", labels=LABELS), session, "live")
        id = await tap.open(upgrade=True, label=stack.announce("1", RolloutKey("shop", "shop-0")))
        for path, body in calls.items():
            await asyncio.to_thread(ask, tap.url(id) + path, body)
        records = await tap.close(id)
        stack.end("1", records)
        await stack.release_all()
    return records, stack


@pytest.mark.parametrize("server", ["dynamo"], indirect=True)
async def test_what_dynamo_tells(server: Server, tap: Tap) -> None:
    """Session, hints and wishes are taken by all three APIs; a call knows its worker, the server's times and its KV hit rate.

    A stream of Responses is told none of them.
    """
    calls, stack = await labelled(server, tap, CALLS)
    told = [call.server for call in calls]

    assert [None] * 3 == [call.error_kind for call in calls]
    assert None is told.pop()
    assert [int] * 2 == [type(each["worker_id"]["decode_worker_id"]) for each in told if each]
    assert [(float, float)] * 2 == [(type(each["timing"]["ttft_ms"]), type(each["timing"]["kv_hit_rate"])) for each in told if each]
    assert asdict(RolloutTally(labelled=1, announced=1, released=1, bypassed=1)) == asdict(
        stack.tally
    )  # there is no router here that waits for releases


@pytest.mark.parametrize("server", ["dynamo"], indirect=True)
async def test_what_dynamo_does_not_tell(server: Server, tap: Tap) -> None:
    """Asked with tools, its answers tell nothing of the kind (1.4.2, where workers have a tool parser); they say what they are called."""
    tool = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
    (call,), _ = await labelled(server, tap, {"/chat/completions": {**HELLO, "tools": [tool]}})

    assert (None, None) == (call.error_kind, call.server)
    assert str(call.response_id).startswith("chatcmpl-")


@pytest.mark.parametrize("server", ["dynamo thunderagent"], indirect=True)
async def test_dynamos_thunderagent(server: Server, tap: Tap) -> None:
    """It knows a rollout's calls as one program, and releases it."""
    (call,), stack = await labelled(server, tap, {"/chat/completions": HELLO})

    assert None is call.error_kind
    assert {"worker_id", "timing"} == (call.server or {}).keys()
    assert asdict(RolloutTally(labelled=1, announced=1, released=1)) == asdict(stack.tally)
    assert "Released program live:shop.shop-0.1:" in server.log.read_text()
