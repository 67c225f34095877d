"""What an answer other than 200 means for a rollout."""

from __future__ import annotations

import json

import pytest

from pytest_agentbench.errors import InfraError, LimitReached, RolloutError
from pytest_agentbench.llm import failure

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
    """Only a full context is the agent's limit, whoever words it; everything else is the backend's trouble, with its words."""
    error = failure(status, json.dumps(content).encode())

    assert (type(expected), str(expected)) == (type(error), str(error))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "HTTP 503: "),
        (b"<html>busy", "HTTP 503: <html>busy"),
        (b"\xff\x00", "HTTP 503: \ufffd\x00"),
        (b"x" * 999, f"HTTP 503: {'x' * 300}"),
    ],
)
def test_bodies_that_are_not_json(content: bytes, text: str) -> None:
    """A body that is no JSON is shown as far as it is short."""
    error = failure(503, content)

    assert (InfraError, text) == (type(error), str(error))
