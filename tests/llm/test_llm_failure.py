"""The errors of a rollout for answers with another status than 200."""

from __future__ import annotations

import json

import pytest

from pytest_agentbench.errors import AgentError, InfraError, LimitReached, RolloutError
from pytest_agentbench.llm.client import Reply, failure
from pytest_agentbench.tap.http_messages import error_body

LONG = "This model's maximum context length is 4096 tokens. However, your messages resulted in 5000 tokens."


@pytest.mark.parametrize(
    ("status", "content", "expected"),
    [
        (400, {"error": {"message": "too long", "code": "context_length_exceeded"}}, LimitReached("context: too long")),
        (400, {"error": {"message": LONG, "code": 400}}, LimitReached(f"context: {LONG}")),
        (400, {"object": "error", "message": LONG}, LimitReached('context: {"object": "error", "message": "' + LONG + '"}')),
        (500, {"error": {"message": LONG}}, InfraError(f"HTTP 500: {LONG}")),
        (400, {"error": {"message": "bad tool", "code": None}}, InfraError("HTTP 400: bad tool")),
        (429, {"error": {"message": "slow down"}}, InfraError("HTTP 429: slow down")),
        (500, {"error": "it broke"}, InfraError('HTTP 500: {"error": "it broke"}')),
        (500, {"error": {"code": 1}}, InfraError('HTTP 500: {"error": {"code": 1}}')),
        (502, ["no"], InfraError('HTTP 502: ["no"]')),
        (502, None, InfraError("HTTP 502: null")),
    ],
)
def test_error_bodies(status: int, content: object, expected: RolloutError) -> None:
    """Only a full context is a limit of the agent, whatever the words of the message.

    Any other error is the backend's, with its message.
    """
    error = failure(status, json.dumps(content).encode())

    assert (type(expected), str(expected)) == (type(error), str(error))


def test_a_status_of_the_tap() -> None:
    """A status of the tap itself is not shown as the backend's.

    The error has the tap's sentence, which contains the status of the backend.
    """
    error = failure(502, error_body(502, "HTTP 200: it is a page", "bad_json"))

    assert (InfraError, "HTTP 200: it is a page") == (type(error), str(error))


@pytest.mark.parametrize(
    ("status", "arguments", "kind"),
    [(400, '{"item": "la', AgentError), (422, "[]", AgentError), (400, "{}", InfraError), (500, '{"item": "la', InfraError)],
)
def test_a_history_that_is_refused(status: int, arguments: str, kind: type[RolloutError]) -> None:
    """If a request that repeats the model's broken arguments is refused, it is an agent error that says so."""
    call = {"id": "1", "type": "function", "function": {"name": "find", "arguments": arguments}}
    asked = json.dumps({"messages": [{"role": "assistant", "tool_calls": [call]}]}).encode()
    error = failure(status, b'{"error": {"message": "Unterminated string"}}', asked)

    assert (kind, True) == (type(error), str(error).startswith(f"HTTP {status}: Unterminated string"))


@pytest.mark.parametrize(
    ("said", "sent"),
    [
        ('{"item": "lamp"}', '{"item": "lamp"}'),
        ("{'item': 'lamp',}", '{"item":"lamp"}'),
        ('{"item": "la', "{}"),
        ('["lamp"]', "{}"),
        ("", "{}"),
        (None, "{}"),
    ],
)
def test_what_is_sent_back(said: str | None, sent: str) -> None:
    """The conversation contains arguments that servers accept. The recorded calls contain the model's original arguments."""
    function = {"name": "find", "arguments": said}
    reply = Reply({"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": function}]}, "stop", {})

    assert (sent, said or "") == (reply.message["tool_calls"][0]["function"]["arguments"], reply.tool_calls[0].arguments)


@pytest.mark.parametrize(("text", "empty"), [("", True), (" \n", True), ("x", False)])
def test_an_empty_answer(text: str, empty: bool) -> None:
    """An answer of white space is empty, and an answer with a tool call is not."""
    said = {"role": "assistant", "content": text}
    call = {"id": "1", "type": "function", "function": {"name": "find"}}

    assert (empty, False) == (Reply(said, "stop", {}).is_empty, Reply({**said, "tool_calls": [call]}, "stop", {}).is_empty)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "HTTP 503: "),
        (b"<html>busy", "HTTP 503: <html>busy"),
        (b"\xff\x00", "HTTP 503: \ufffd\x00"),
        (b"x" * 999, f"HTTP 503: {'x' * 300} [699 characters left out]"),
    ],
)
def test_bodies_that_are_not_json(content: bytes, text: str) -> None:
    """A body that is not JSON is shown, truncated if it is long."""
    error = failure(503, content)

    assert (InfraError, text) == (type(error), str(error))
