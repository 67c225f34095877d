"""The server of a recording over HTTP: recorded errors, streams and whole answers, the pace, and what it refuses."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Self

import pytest
from aiohttp.test_utils import TestClient, TestServer
from openai import AsyncOpenAI

from pytest_agentbench.recordings.server import Player
from pytest_agentbench.records import Json
from pytest_agentbench.tap.routing_hints import PLACE, make_labels
from tests.recordings.made_recordings import FIRST, MadeCall, asking, made, saying

CHAT = "/v1/chat/completions"


class Served:
    """A recording that is served, and a client of it."""

    def __init__(self, directory: Path, *calls: MadeCall, **options: Any) -> None:
        application = Player(made(directory, calls), "m", **options).application()
        self.client = TestClient(TestServer(application))

    async def __aenter__(self) -> Self:
        await self.client.start_server()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    def sdk(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=str(self.client.make_url("/v1")), api_key="none")

    async def post(self, body: Json, path: str = CHAT, **headers: str) -> tuple[int, str]:
        async with self.client.post(path, json=body, headers=headers) as answer:
            return answer.status, await answer.text()

    async def get(self, path: str) -> Any:
        async with self.client.get(path) as answer:
            return await answer.json()


async def test_answers(tmp_path: Path) -> None:
    """A request gets the recorded answer whole or as a stream, and the models and counts are those of the recording."""
    async with Served(tmp_path, MadeCall(asking("Hi"), saying("Hello"))) as served:
        status, text = await served.post(asking("Hi"))
        assert (200, saying("Hello")) == (status, json.loads(text))
        status, text = await served.post(asking("Hi", stream=True))
        assert (200, True) == (status, text.startswith("data: ") and text.endswith("data: [DONE]\n\n"))
        assert ["m"] == [model["id"] for model in (await served.get("/v1/models"))["data"]]
        assert 2 == (await served.get("/v1/playback"))["by_content"]


async def test_place(tmp_path: Path) -> None:
    """The server reads the place from the header that the tap adds, whatever characters the ids have."""
    key = FIRST._replace(scenario="é [1]")
    headers = make_labels({"kind": "recording"}).of_rollout("id", key, "judge").headers
    async with Served(tmp_path, MadeCall(asking("Hi"), saying("a"), key, "judge")) as served:
        await served.post(asking("Hi"), **headers)
        assert [PLACE] == [*headers]
        assert 1 == (await served.get("/v1/playback"))["played_calls"]


@pytest.mark.parametrize("reply", [{"error": {"message": "too many"}}, "busy"])
async def test_recorded_errors(tmp_path: Path, reply: Any) -> None:
    """Error responses have the recorded status, body and Retry-After. The request after one gets the answer that followed."""
    failed = MadeCall(asking("Hi"), reply, more={"status": 429, "retry_after_s": 1.5})
    async with Served(tmp_path, failed, MadeCall(asking("Hi"), saying("Hello"))) as served:
        async with served.client.post(CHAT, json=asking("Hi")) as answer:
            body = await (answer.text() if isinstance(reply, str) else answer.json())
            assert (429, "1.5", reply) == (answer.status, answer.headers["Retry-After"], body)
        assert 200 == (await served.post(asking("Hi")))[0]


async def test_misses(tmp_path: Path) -> None:
    """A request that was not recorded gets a 404 in the form of all APIs, with the command that records again."""
    async with Served(tmp_path, MadeCall(asking("Hi"), saying("Hello")), command="pytest scenarios") as served:
        status, text = await served.post(asking("Hi", temperature=1))
        error = json.loads(text)
        assert (404, "error", "not_recorded") == (status, error["type"], error["error"]["type"])
        assert error["error"]["message"].endswith("; to record again, run `pytest scenarios`")


@pytest.mark.parametrize(("path", "body"), [("/v1/embeddings", asking("Hi")), ("/elsewhere", asking("Hi")), (CHAT, [])])
async def test_other_requests(tmp_path: Path, path: str, body: Any) -> None:
    """Other requests are refused as well, and are no misses of the recording."""
    async with Served(tmp_path, MadeCall(asking("Hi"), saying("Hello"))) as served:
        assert 404 == (await served.post(body, path))[0]
        assert 0 == (await served.get("/v1/playback"))["missed"]


@pytest.mark.parametrize(("pace", "least", "most"), [("recorded", 0.2, 5.0), ("at_once", 0.0, 0.2)])
async def test_pace(tmp_path: Path, pace: str, least: float, most: float) -> None:
    """Answers end at the recorded time, or at once."""
    call = MadeCall(asking("Hi"), saying("Hello"), more={"first_s": 0.1, "end_s": 0.2, "pieces": 3})
    async with Served(tmp_path, call, pace=pace) as served:
        for body in (asking("Hi"), asking("Hi", stream=True)):
            begun = time.monotonic()
            await served.post(body)
            assert least <= time.monotonic() - begun < most


async def test_streams_are_read_by_the_sdk(tmp_path: Path) -> None:
    """The SDK of OpenAI assembles the recorded response from a stream: messages, reasoning and tool calls."""
    output = [
        {"type": "reasoning", "id": "r1", "summary": [{"type": "summary_text", "text": "Hm, a lamp"}]},
        {"type": "function_call", "id": "f1", "call_id": "c1", "name": "find", "arguments": '{"item": "lamp"}', "status": "completed"},
        {
            "type": "message",
            "id": "m1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Found it", "annotations": []}],
        },
    ]
    head = {"id": "resp_1", "object": "response", "created_at": 7, "model": "m", "status": "completed", "parallel_tool_calls": True}
    reply = {**head, "tools": [], "tool_choice": "auto", "output": output}
    body = {"model": "m", "input": "Hi"}
    async with Served(tmp_path, MadeCall(body, reply, path="/responses")) as served:
        async with served.sdk() as client, client.responses.stream(model="m", input="Hi") as stream:
            deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            whole = await stream.get_final_response()
        assert (["Found it"], "Found it") == (deltas, whole.output_text)
        assert ["reasoning", "function_call", "message"] == [item.type for item in whole.output]


async def test_whole_conversations_by_the_sdk(tmp_path: Path) -> None:
    """A chat stream that the SDK of OpenAI reads has the recorded text, tool call and finish reason."""
    call = {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": '{"item": "lamp"}'}}
    reply = saying("Wait.")
    reply["choices"][0] |= {"message": {"role": "assistant", "content": "Wait.", "tool_calls": [call]}, "finish_reason": "tool_calls"}
    async with Served(tmp_path, MadeCall(asking("Hi"), reply)) as served:
        async with (
            served.sdk() as client,
            client.chat.completions.stream(model="m", messages=[{"role": "user", "content": "Hi"}]) as stream,
        ):
            [choice] = (await stream.get_final_completion()).choices
        assert ("Wait.", "tool_calls") == (choice.message.content, choice.finish_reason)
        [found] = choice.message.tool_calls or []
        assert ("call_1", '{"item": "lamp"}') == (found.id, found.function.arguments)
