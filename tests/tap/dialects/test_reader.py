"""The text and tool calls of an answer of any API, streamed or not, from which the tool calls of command agents are taken."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.records import Json
from pytest_agentbench.tap.dialects import Dialect
from pytest_agentbench.tap.dialects.chat import ChatReader
from pytest_agentbench.tap.dialects.completions import CompletionsReader
from pytest_agentbench.tap.dialects.messages import MessagesReader
from pytest_agentbench.tap.dialects.reader import DialectReader
from pytest_agentbench.tap.dialects.responses import ResponsesReader
from tests.tap.dialects.answer_events import objects, read, read_whole

FIND: Json = {"id": "c1", "name": "find", "arguments": '{"n":1}'}


def chat(message: Json, **more: Any) -> Json:
    return {"id": "x", "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}], **more}


def called(id: str | None, **function: Any) -> Json:
    return {"id": id, "type": "function", "function": function}


def chunk(**delta: Any) -> Json:
    return {"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


FINISH: Json = {"id": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
CHAT_STREAM = [
    chunk(role="assistant", content="Let me "),
    chunk(content="look"),
    chunk(tool_calls=[{"index": 0, **called("c1", name="find", arguments="")}]),
    chunk(tool_calls=[{"index": 0, "function": {"arguments": '{"n"'}}]),
    chunk(tool_calls=[{"index": 0, "function": {"arguments": ":1}"}}]),
    FINISH,
    b"[DONE]",
]
OUTPUT: list[Json] = [
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me look"}]},
    {"type": "function_call", "id": "fc", "call_id": "c1", "name": "find", "arguments": '{"n":1}'},
    {"type": "mcp_call", "id": "m", "name": "of_the_server", "arguments": "{}"},
]
RESPONSE: Json = {"id": "r", "status": "completed", "output": OUTPUT}
CONTENT: list[Json] = [
    {"type": "thinking", "thinking": "hm", "signature": "s"},
    {"type": "text", "text": "Let me look"},
    {"type": "tool_use", "id": "c1", "name": "find", "input": {"n": 1}},
    {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}},
]
MESSAGE: Json = {"id": "m", "type": "message", "role": "assistant", "content": CONTENT, "stop_reason": "tool_use"}
MESSAGE_STREAM: list[Json] = [
    {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None, "usage": {"input_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Let me look"}},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "c1", "name": "find", "input": {}}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"n": 1}'}},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
    {"type": "message_stop"},
]

READINGS = {
    "chat, streamed": read(ChatReader, *CHAT_STREAM),
    "chat, whole": read_whole(ChatReader, chat({"content": "Let me look", "tool_calls": [called("c1", name="find", arguments='{"n":1}')]})),
    "responses, streamed": read(ResponsesReader, {"type": "response.completed", "response": RESPONSE}),
    "responses, whole": read_whole(ResponsesReader, RESPONSE),
    "messages, streamed": read(MessagesReader, *MESSAGE_STREAM),
    "messages, whole": read_whole(MessagesReader, MESSAGE),
}


@pytest.mark.parametrize("name", READINGS)
def test_a_text_and_a_call(name: str) -> None:
    """Each API has the same result: the text without reasoning, and the calls that the agent must carry out."""
    assert {"text": "Let me look", "tool_calls": [FIND]} == READINGS[name].output()


@pytest.mark.parametrize(
    ("reading", "said"),
    [
        (read_whole(ChatReader, chat({"content": "Hi"})), ("Hi", [])),
        (read_whole(ChatReader, chat({"content": None, "function_call": {"name": "f", "arguments": "{"}})), ("", [("", "f", "{")])),
        (
            read_whole(ChatReader, chat({"tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "f", "input": "x"}}]})),
            ("", [("c", "f", "x")]),
        ),
        (read_whole(ChatReader, chat({"tool_calls": [called(None, name="f")]})), ("", [("", "f", "")])),
        (read_whole(CompletionsReader, {"choices": [{"text": "Hi", "finish_reason": "stop"}]}), ("Hi", [])),
        (
            read_whole(
                ResponsesReader,
                {"status": "completed", "output": [{"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"}]},
            ),
            ("", [("c", "f", "x")]),
        ),
        (
            read_whole(ResponsesReader, {"status": "completed", "output": [{"type": "message", "content": [{"refusal": "No"}]}]}),
            ("", []),
        ),
        (read_whole(MessagesReader, {**MESSAGE, "content": [{"type": "tool_use", "name": "f"}]}), ("", [("", "f", "{}")])),
    ],
)
def test_other_answers(reading: DialectReader, said: tuple[str, list[tuple[str, str, str]]]) -> None:
    """Old function calls and custom tools are tool calls, too. Arguments are as the model wrote them, even if they are not JSON."""
    found = reading.output()

    assert reading.error_kind is None
    assert said == (found["text"], [tuple(call.values()) for call in found["tool_calls"]])


def test_several_choices() -> None:
    """Only the first of several choices counts."""
    choices = [{"index": index, "message": {"content": f"answer {index}"}, "finish_reason": "stop"} for index in (1, 0)]

    assert "answer 0" == read_whole(ChatReader, {"choices": choices}).output()["text"]


@pytest.mark.parametrize("written", ['{"n": ', "[]", "lamp"])
def test_an_input_that_is_not_an_object(written: str) -> None:
    """Messages cannot represent input that is not an object. That is the model's fault, so its text is kept, and there is no fault."""
    opened = {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "c", "name": "f", "input": {}}}
    piece = {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": written}}
    ended = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}}
    reading = read(MessagesReader, opened, piece, ended, {"type": "message_stop"})

    assert (None, [{"id": "c", "name": "f", "arguments": written}]) == (reading.error_kind, reading.output()["tool_calls"])
    assert {} == json.loads(reading.assemble())["content"][0]["input"]


@given(text=st.text(), arguments=st.lists(objects, max_size=3))
@pytest.mark.parametrize("dialect", [ChatReader, MessagesReader, ResponsesReader])
def test_nothing_is_lost(dialect: Dialect, text: str, arguments: list[Json]) -> None:
    """All text and all calls are kept, in order."""
    calls = [called(f"c{place}", name="f", arguments=json.dumps(each)) for place, each in enumerate(arguments)]
    blocks: list[Json] = [{"type": "text", "text": text}]
    whole = {
        "chat": chat({"content": text, "tool_calls": calls}),
        "messages": {**MESSAGE, "content": blocks + [{"type": "tool_use", "id": "c", "name": "f", "input": each} for each in arguments]},
        "responses": {
            "status": "completed",
            "output": [
                {"type": "message", "content": [{"type": "output_text", "text": text}]},
                *({"type": "function_call", "call_id": "c", "name": "f", "arguments": json.dumps(each)} for each in arguments),
            ],
        },
    }
    reading = read_whole(dialect, whole[dialect.name])

    if reading.error_kind is None:
        found = reading.output()
        assert (text, arguments) == (found["text"], [json.loads(call["arguments"]) for call in found["tool_calls"]])
    else:
        assert ("empty", "", []) == (reading.error_kind, text, arguments)
