"""Requests and answers of each API as messages of Chat Completions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.records import Json
from pytest_agentbench.tap.dialects import DIALECTS
from tests.tap.dialects.conversation import ANSWER, FOUND, IMAGE, QUESTION, REPLIES, REQUESTS, RULES, SEARCH, THINKING, text


@pytest.mark.parametrize("route", REQUESTS)
def test_requests_of_all_apis(route: str) -> None:
    """The same conversation has the same messages in all APIs: instructions, reasoning, tool calls and their results."""
    assert [RULES, QUESTION, THINKING, FOUND] == DIALECTS[route].chat_request(REQUESTS[route])


@pytest.mark.parametrize("route", REPLIES)
def test_replies_of_all_apis(route: str) -> None:
    """The same answer is the same message in all APIs. Of several choices, the first one counts."""
    assert [ANSWER] == DIALECTS[route].chat_reply(REPLIES[route])


@pytest.mark.parametrize(
    ("route", "request_", "messages"),
    [
        ("/completions", {"prompt": "What is tea?"}, [QUESTION]),
        ("/completions", {"prompt": [[1, 2], [3]]}, []),
        ("/responses", {"input": "What is tea?"}, [QUESTION]),
        ("/responses", {"input": [QUESTION, QUESTION]}, [QUESTION, QUESTION]),
        ("/responses", {"input": [SEARCH]}, [{"role": "assistant", "content": json.dumps(SEARCH)}]),
        (
            "/responses",
            {"input": [{"type": "custom_tool_call", "call_id": "c1", "name": "sh", "input": "ls"}]},
            [{**ANSWER, "content": "", "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "sh", "arguments": "ls"}}]}],
        ),
        (
            "/messages",
            {"messages": [{"role": "user", "content": [text("What"), IMAGE, text("is it?")]}]},
            [{"role": "user", "content": [text("What"), IMAGE, text("is it?")]}],
        ),
        (
            "/messages",
            {"messages": [{"role": "assistant", "content": [text("A "), text("leaf.")]}]},
            [ANSWER],
        ),
        (
            "/responses",
            {"input": [{"role": "assistant", "content": [text("A ", "output_text"), text("leaf.", "output_text")]}]},
            [ANSWER],
        ),
        (
            "/messages",
            {"messages": [{"role": "user", "content": [text("What"), text("is tea?")]}]},
            [{**QUESTION, "content": "What\nis tea?"}],
        ),
    ],
)
def test_other_requests(route: str, request_: Json, messages: list[Json]) -> None:
    """Prompts that are texts are messages of the user. Images stay parts, and calls of other tools become JSON text."""
    assert messages == DIALECTS[route].chat_request(request_)


@pytest.mark.parametrize("route", DIALECTS)
def test_errors_have_no_messages(route: str) -> None:
    """The answer of a failed call has no messages."""
    assert [] == DIALECTS[route].chat_reply({"type": "error", "error": {"message": "busy"}})


scalars = st.none() | st.booleans() | st.integers() | st.text()
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
items = st.dictionaries(st.sampled_from(["type", "role", "content", "text", "summary", "input", "output", "tool_calls"]), values)
fields = st.sampled_from(["messages", "input", "prompt", "output", "choices", "content"])


@given(st.sampled_from(sorted(DIALECTS)), fields, st.lists(items | values))
def test_anything_can_be_converted(route: str, field: str, value: Any) -> None:
    """Whatever an agent or a server sends, the result is a list of objects."""
    body = {field: value, "role": "assistant"}

    assert all(isinstance(each, dict) for each in [*DIALECTS[route].chat_request(body), *DIALECTS[route].chat_reply(body)])
