"""Real stacks accept the labels, report their decisions, and receive the end of a rollout."""

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
    """Makes calls of one rollout with labels, and ends the rollout. Returns the calls and the announcer."""
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
async def test_the_reports_of_dynamo(server: Server, tap: Tap) -> None:
    """All three APIs accept session, hints and requested fields. A call has its worker, the server's times and its KV hit rate.

    The stream of Responses contains none of these fields.
    """
    calls, stack = await labelled(server, tap, CALLS)
    told = [call.server for call in calls]

    assert [None] * 3 == [call.error_kind for call in calls]
    assert None is told.pop()
    assert [int] * 2 == [type(each["worker_id"]["decode_worker_id"]) for each in told if each]
    assert [(float, float)] * 2 == [(type(each["timing"]["ttft_ms"]), type(each["timing"]["kv_hit_rate"])) for each in told if each]
    assert asdict(RolloutTally(labelled=1, announced=1, released=1, bypassed=1)) == asdict(
        stack.tally
    )  # this stack has no router that waits for releases


@pytest.mark.parametrize("server", ["dynamo"], indirect=True)
async def test_the_reports_of_dynamo_with_tools(server: Server, tap: Tap) -> None:
    """If a request has tools and workers have a tool parser, answers of Dynamo contain the same report as without tools."""
    tool = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
    (call,), _ = await labelled(server, tap, {"/chat/completions": {**HELLO, "tools": [tool]}})

    assert None is call.error_kind
    assert {"worker_id", "timing"} == (call.server or {}).keys()
    assert str(call.response_id).startswith("chatcmpl-")


@pytest.mark.parametrize("server", ["dynamo thunderagent"], indirect=True)
async def test_dynamos_thunderagent(server: Server, tap: Tap) -> None:
    """The ThunderAgent router of Dynamo treats the calls of a rollout as one program, and releases it."""
    (call,), stack = await labelled(server, tap, {"/chat/completions": HELLO})

    assert None is call.error_kind
    assert {"worker_id", "timing"} == (call.server or {}).keys()
    assert asdict(RolloutTally(labelled=1, announced=1, released=1)) == asdict(stack.tally)
    assert "path=session_final program=live:shop.shop-0.1:" in server.log.read_text()
