"""Messages of Responses, Messages and Completions in the form of Chat Completions."""

from __future__ import annotations

import pytest

from pytest_agentbench.lib.chat_messages import chat_messages
from pytest_agentbench.records import Json

CALL = {"id": "c1", "type": "function", "function": {"name": "find_item", "arguments": '{"item": "lamp"}'}}

#: Question, call, result and answer.
TALK: list[Json] = [
    {"role": "user", "content": "A lamp?"},
    {"role": "assistant", "content": "I look.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "one"},
    {"role": "assistant", "content": "Yes."},
]

RESPONSES: list[Json] = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "A lamp?"}]},
    {"type": "reasoning", "summary": []},
    {"type": "message", "id": "m1", "role": "assistant", "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
    {"type": "function_call", "id": "f1", "call_id": "c1", "name": "find_item", "arguments": '{"item": "lamp"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "one"},
    {"role": "assistant", "content": "Yes."},
]

MESSAGES: list[Json] = [
    {"role": "user", "content": "A lamp?"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "s"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "c1", "name": "find_item", "input": {"item": "lamp"}},
        ],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "one"}]}]},
    {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]},
]


@pytest.mark.parametrize(("dialect", "messages"), [("chat", TALK), ("responses", RESPONSES), ("messages", MESSAGES)])
def test_one_form(dialect: str, messages: list[object]) -> None:
    """A conversation has the same messages in all APIs."""
    assert TALK == chat_messages(dialect, messages)


def test_other_contents() -> None:
    """Texts are one message of the user, several calls are one message, and an image stays as it is."""
    image = {"type": "image", "source": {"type": "base64", "data": "AA=="}}
    calls = [{"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"} for id in "ab"]

    assert [{"role": "user", "content": "A lamp?"}] == chat_messages("completions", ["A ", "lamp?"])
    assert [["a", "b"]] == [[call["id"] for call in each["tool_calls"]] for each in chat_messages("responses", calls)]
    assert [{"role": "user", "content": [image]}] == chat_messages("messages", [{"role": "user", "content": [image]}])
    assert [] == chat_messages("responses", [])
