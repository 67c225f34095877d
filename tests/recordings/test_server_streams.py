"""Streams that are made of complete answers: the tap assembles the same answers from them."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_agentbench.recordings.server import stream_events
from pytest_agentbench.records import Json
from pytest_agentbench.tap.dialects import DIALECTS
from pytest_agentbench.tap.dialects.reader import DialectReader
from pytest_agentbench.tap.stream import EventReader, NetworkRead
from tests.recordings.made_recordings import saying
from tests.tap.dialects.answer_events import assembled, read_recorded

STREAMING: Json = {"stream": True, "stream_options": {"include_usage": True}}

CALL = {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": '{"item": "lamp"}'}}
EMPTY_CALL = {"id": "call_2", "type": "function", "function": {"name": "list", "arguments": ""}}
CUSTOM: Json = {"id": "call_3", "type": "custom", "custom": {"name": "shell", "input": "ls"}}


def read_back(route: str, reply: Any, pieces: int = 1, request: Json = STREAMING) -> DialectReader:
    reading = DIALECTS[route]()
    reads = [NetworkRead(place, 5, event) for place, event in enumerate(stream_events(route, reply, request, pieces))]
    for event in EventReader().feed(reads):
        reading.add(event)
    reading.end()
    return reading


@pytest.mark.parametrize("pieces", [1, 20])
@pytest.mark.parametrize(
    ("route", "file"),
    [
        ("/chat/completions", "captured-vllm-parallel-calls.sse"),
        ("/chat/completions", "captured-vllm-reasoning-and-call.sse"),
        ("/chat/completions", "captured-dynamo-parallel-calls.sse"),
        ("/chat/completions", "captured-dynamo-reasoning-and-call.sse"),
        ("/chat/completions", "vllm-chat.sse"),
        ("/completions", "vllm-completions.sse"),
        ("/responses", "openai-responses.sse"),
        ("/messages", "anthropic-messages.sse"),
    ],
)
def test_answers_of_servers(route: str, file: str, pieces: int) -> None:
    """An answer that a server really gave comes out of its new stream unchanged, with usage, reasoning and the ids of tool calls."""
    reply = assembled(read_recorded(DIALECTS[route], file))

    assert reply == assembled(read_back(route, reply, pieces))


def chat(*messages: Json) -> Json:
    choices = [
        {"index": index, "message": {"role": "assistant", "refusal": None, **message}, "logprobs": None, "finish_reason": "stop"}
        for index, message in enumerate(messages)
    ]
    return {**saying(""), "choices": choices, "usage": {"prompt_tokens": 3, "completion_tokens": 2}}


def content(*blocks: Json) -> Json:
    usage = {"input_tokens": 3, "output_tokens": 2}
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn", "stop_sequence": None}
    return {**head, "content": [*blocks], "usage": usage}


def output(*items: Json, **more: Any) -> Json:
    return {"id": "resp_1", "object": "response", "status": "completed", "model": "m", "output": [*items], **more}


@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize(
    ("route", "reply"),
    [
        ("/chat/completions", chat({"content": "One é", "refusal": None}, {"content": "Two"})),
        ("/chat/completions", chat({"content": None, "tool_calls": [CALL, EMPTY_CALL]})),
        ("/chat/completions", chat({"content": None, "tool_calls": [CUSTOM]})),
        ("/chat/completions", chat({"content": "Wait.", "reasoning_content": "Hm, a lamp", "tool_calls": [CALL]})),
        ("/messages", content({"type": "thinking", "thinking": "Hm", "signature": "s=="}, {"type": "text", "text": "Found it"})),
        ("/messages", content({"type": "tool_use", "id": "t1", "name": "find", "input": {"item": "lamp"}})),
        ("/messages", content({"type": "tool_use", "id": "t1", "name": "list", "input": {}})),
        ("/responses", output({"type": "function_call", "id": "f1", "call_id": "c1", "name": "find", "arguments": '{"a": 1}'})),
        ("/responses", output({"type": "custom_tool_call", "id": "f1", "call_id": "c1", "name": "shell", "input": "ls"})),
        ("/responses", output({"type": "reasoning", "id": "r1", "summary": [{"type": "summary_text", "text": "Hm"}]})),
        ("/responses", output(status="incomplete", incomplete_details={"reason": "max_output_tokens"})),
    ],
)
def test_made_answers(route: str, reply: Json, pieces: int) -> None:
    """Several choices, tool calls without arguments, custom tools, thinking and truncated answers come out unchanged."""
    assert reply == assembled(read_back(route, reply, pieces))


def test_usage_only_on_request() -> None:
    """As a server does, a chat stream reports the usage only if the request asks for it."""
    reply = chat({"content": "Hello"})

    without = assembled(read_back("/chat/completions", reply, request={"stream": True}))
    assert without == {name: value for name, value in reply.items() if name != "usage"}


def test_pieces() -> None:
    """The number of events with output is about the requested one."""
    kinds = [chunk.kind for chunk in read_back("/chat/completions", chat({"content": "x" * 100}), 10).chunks]

    assert 8 <= kinds.count("content") <= 10
