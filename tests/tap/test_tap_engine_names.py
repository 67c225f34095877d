"""The tap records which engine answered a call, if the engine names itself in its answer."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from pytest_agentbench.records import Json
from pytest_agentbench.tap.routing_hints import DynamoLabels
from tests.engines import engine
from tests.tap.peers import Tap


@pytest.mark.parametrize("upgrade", [True, False])
@pytest.mark.parametrize("stream", [True, False])
async def test_the_engine_of_a_call(tap: Tap, tmp_path: Path, *, stream: bool, upgrade: bool) -> None:
    """The name is in the record of a streamed call, of a whole answer, of a stream that was cut, and of no refused call."""
    rules: list[Json] = [{"match": {"call": 1}, "text": "Hello", "cut_after": 1}, {"match": {"call": 2}, "status": 503}, {"text": "Hello"}]
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "stream": stream}
    with engine(tmp_path, rules, model="m", worker_id="engine-1") as url:
        await tap.point_at(f"{url}/v1")
        id = await tap.open(upgrade)
        for _ in range(3):
            await asyncio.to_thread(_post, f"{tap.url(id)}/chat/completions", body)
        calls = await tap.close(id)

    name = {"worker_id": "engine-1"}
    assert [name if stream or upgrade else None, None, name] == [call.server for call in calls]


async def test_labels_ask_for_the_engine(tap: Tap, tmp_path: Path) -> None:
    """The labels of Dynamo request the worker, and an engine without a name gives its address."""
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
    with engine(tmp_path, model="m") as url:
        await tap.point_at(f"{url}/v1")
        id = await tap.open(label=DynamoLabels().label("r"))
        await asyncio.to_thread(_post, f"{tap.url(id)}/chat/completions", body)
        (call,) = await tap.close(id)

    assert {"worker_id": url.removeprefix("http://")} == call.server


def _post(url: str, body: Json) -> None:
    """Sends a request. Its answer may be cut."""
    with suppress(httpx.RemoteProtocolError):
        httpx.post(url, json=body, timeout=30)
