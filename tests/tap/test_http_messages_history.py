"""Requests that a backend refuses because of earlier output of the model, and calls with equal requests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_agentbench.records import Json
from pytest_agentbench.tap.http_messages import holds_broken_arguments
from tests.tap.peers import CHAT, Tap, agent, answering, backend, request, response

TRUNCATED = '{"item": "la'


def chat(arguments: Any) -> Json:
    function = {"name": "find", "arguments": arguments}
    return {"messages": [*CHAT["messages"], {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}]}


def old_chat(arguments: Any) -> Json:
    return {"messages": [{"role": "assistant", "function_call": {"name": "find", "arguments": arguments}}]}


def responses(arguments: Any) -> Json:
    return {"input": [{"role": "user", "content": "Hello"}, {"type": "function_call", "name": "find", "arguments": arguments}]}


def messages(arguments: Any) -> Json:
    return {"messages": [{"role": "assistant", "content": [{"type": "text"}, {"type": "tool_use", "name": "find", "input": arguments}]}]}


@pytest.mark.parametrize("dialect", [chat, old_chat, responses, messages])
@pytest.mark.parametrize(
    ("arguments", "broken"),
    [
        ('{"item": "lamp"}', False),
        ({}, False),
        ('{"item": "\\ud800"}', False),
        (TRUNCATED, True),
        ('["lamp"]', True),
        ("", True),
        (None, True),
        ("\ud800", True),
        ("[" * 100_000, True),
    ],
)
def test_arguments_in_a_history(dialect: Any, arguments: Any, broken: bool) -> None:
    """In each API, arguments of an earlier tool call that are not a JSON object are found."""
    assert broken == holds_broken_arguments(json.dumps(dialect(arguments)).encode())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"messages": 5, "input": "Hello"}',
        b'{"messages": [5, {"role": "assistant", "content": "x", "tool_calls": [5]}]}',
    ],
)
def test_histories_without_broken_calls(body: bytes) -> None:
    """A body that is unreadable, or has no such calls, has no broken ones."""
    assert not holds_broken_arguments(body)


@pytest.mark.parametrize(
    ("status", "message", "arguments", "kind"),
    [
        (400, "Unterminated string", TRUNCATED, "bad_history"),
        (422, "Unterminated string", TRUNCATED, "bad_history"),
        (400, "Unterminated string", "{}", "http_status"),
        (400, "This model's maximum context length is 5", TRUNCATED, "http_status"),
        (404, "no such model", TRUNCATED, "http_status"),
        (500, "Unterminated string", TRUNCATED, "server_error"),
    ],
)
async def test_a_request_that_is_refused_for_its_history(tap: Tap, status: int, message: str, arguments: str, kind: str) -> None:
    """A 400 or 422 to a request with broken arguments of the model has its own kind of fault. The agent gets the answer unchanged."""
    body, refusal = json.dumps({**CHAT, **chat(arguments)}).encode(), json.dumps({"error": {"message": message}}).encode()
    id = await tap.open()
    async with backend(answering(response(refusal, status))) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        answer = await caller.ask(request(id, body=body))
    (call,) = await tap.close(id)

    assert (status, refusal) == (answer.status, answer.body)
    assert (kind, status, f"HTTP {status}: {message}") == (call.error_kind, call.http_status, call.error)


async def test_equal_requests_have_equal_checksums(tap: Tap) -> None:
    """Calls with the same body have the same checksum, whatever else differs. Labels that the tap adds do not count."""
    bodies = [json.dumps({**CHAT, "seed": seed}).encode() for seed in (1, 1, 2)]
    id = await tap.open()
    async with backend(answering(*[response(b"{}", 500)] * 3)) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        for number, body in enumerate(bodies):
            await caller.ask(request(id, body=body, headers=f"x-number: {number}\r\n"))
    first, second, third = await tap.close(id)

    assert (True, False) == (first.request_crc == second.request_crc, first.request_crc == third.request_crc)
