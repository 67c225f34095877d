"""The tap assembles streams in the same way as the openai SDK."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from pytest_agentbench.records import Json
from tests.tap.peers import DONE, Tap, answering, backend, event, stream


def tool(index: int, arguments: str, **named: Any) -> bytes:
    """Returns a piece of a tool call. The first piece has the name and the id."""
    opening = {"id": f"call-{index}", "type": "function"} if named else {}
    return event({"tool_calls": [{"index": index, **opening, "function": {"arguments": arguments, **named}}]})


def of(choice: int, delta: Json, finish_reason: str | None = None) -> bytes:
    return event(choices=[{"index": choice, "delta": delta, "finish_reason": finish_reason}])


def client(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=url, api_key="-", max_retries=0)


ROLE = event({"role": "assistant", "content": None})
USAGE = event(usage={"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3})
STREAMS = {
    "text": [event({"role": "assistant", "content": ""}), event({"content": "Grüß "}), event({"content": "Gott ✨"}), event({}, "stop")],
    "usage": [
        event({"role": "assistant", "content": "a"}),
        event({}, "stop"),
        USAGE,
    ],
    "calls": [ROLE, tool(0, "", name="lamp"), tool(0, '{"on'), tool(1, "{}", name="door"), tool(0, '":1}'), event({}, "tool_calls")],
    "text and a call": [event({"role": "assistant", "content": "Well"}), tool(0, "{}", name="lamp"), event({}, "tool_calls")],
    "choices": [ROLE, of(1, {"role": "assistant", "content": "b"}), of(0, {"content": "a"}), of(1, {}, "stop"), of(0, {}, "stop")],
    "reasoning": [ROLE, event({"reasoning_content": "hm "}), event({"reasoning_content": "so"}), event({"content": "y"}, "stop")],
    "refusal": [ROLE, event({"refusal": "I "}), event({"refusal": "cannot"}), event({}, "stop")],
    "one chunk": [event({"role": "assistant", "content": "all"}, "stop")],
}


@pytest.mark.parametrize("name", STREAMS)
async def test_as_the_sdk_assembles(tap: Tap, name: str) -> None:
    """An agent that does not stream gets the same fields as an agent that streams gets from the SDK."""
    id = await tap.open()
    asked: Any = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
    async with backend(answering(stream(*STREAMS[name], DONE))) as url:
        await tap.point_at(url)
        async with client(url) as direct, direct.chat.completions.stream(**asked) as events:
            assembled = (await events.get_final_completion()).model_dump(exclude_none=True)
        async with client(tap.url(id)) as through:
            tapped = (await through.chat.completions.create(**asked)).model_dump(exclude_none=True)
    for choice in assembled["choices"]:  # Only the streams of the SDK have these fields.
        choice["message"].pop("parsed", None)
        for call in choice["message"].get("tool_calls", ()):
            call.pop("index", None)
            call["function"].pop("parsed_arguments", None)
    assembled["choices"].sort(key=lambda choice: int(choice["index"]))

    assert assembled == tapped
