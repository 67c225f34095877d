"""The changes to requests in each API: where the salt goes, whether usage must be requested, and which hint fields are allowed."""

from __future__ import annotations

import orjson
import pytest

from pytest_agentbench.records import Json
from pytest_agentbench.tap.dialects import DIALECTS, Dialect
from pytest_agentbench.tap.dialects.chat import ChatReader
from pytest_agentbench.tap.dialects.reader import DialectReader
from pytest_agentbench.tap.upgrade import BodyChanges, apply_changes

SALT = "[benchmark run 0123]"
USER = {"role": "user", "content": "Hello"}
ROUTES = {dialect.name: route for route, dialect in DIALECTS.items()}


@pytest.mark.parametrize(
    ("dialect", "body", "changed"),
    [
        ("chat", {"messages": [USER]}, {"messages": [{"role": "system", "content": SALT}, USER]}),
        (
            "chat",
            {"messages": [{"role": "system", "content": "Be short."}, USER]},
            {"messages": [{"role": "system", "content": f"{SALT}\nBe short."}, USER]},
        ),
        (
            "chat",
            {"messages": [{"role": "developer", "content": [{"type": "text", "text": "Be short."}]}, USER]},
            {"messages": [{"role": "developer", "content": [{"type": "text", "text": SALT}, {"type": "text", "text": "Be short."}]}, USER]},
        ),
        ("chat", {"messages": "none"}, {}),
        ("completions", {"prompt": "Once"}, {"prompt": f"{SALT}\nOnce"}),
        ("completions", {"prompt": [1, 2]}, {}),
        ("responses", {"input": "Hello"}, {"instructions": SALT}),
        ("responses", {"input": "Hello", "instructions": "Be short."}, {"instructions": f"{SALT}\nBe short."}),
        ("messages", {"messages": [USER], "system": "Be short."}, {"system": f"{SALT}\nBe short."}),
    ],
)
def test_where_the_salt_is(dialect: str, body: Json, changed: Json) -> None:
    """The salt goes before the system prompt, which is added if it is missing. Requests with an unknown form are not changed."""
    asked = {"model": "m", "tools": [{"type": "function"}], **body}

    salted = apply_changes(ROUTES[dialect], orjson.dumps(asked), BodyChanges(upgrade=False, usage=False, fields={}, salt=SALT))

    assert {**asked, **changed} == orjson.loads(salted.body)


def test_without_a_salt_bytes_stay_bytes() -> None:
    """A body without additions is forwarded byte for byte."""
    body = b'{"model":  "m", "messages": []}'

    assert body is apply_changes(ROUTES["chat"], body, BodyChanges(upgrade=False, usage=False, fields={})).body


@pytest.mark.parametrize(("dialect", "asked_for"), [("chat", True), ("completions", True), ("responses", False), ("messages", False)])
def test_which_streams_are_asked_for_their_usage(dialect: str, asked_for: bool) -> None:
    """Usage is requested in the APIs that do not send it anyway, and hidden from an agent that did not request it."""
    body = orjson.dumps({"model": "m", "stream": True})

    asked = apply_changes(ROUTES[dialect], body, BodyChanges(upgrade=False, usage=True, fields={}))

    assert asked_for == asked.hides_usage
    assert {"include_usage": True} == orjson.loads(asked.body)["stream_options"] if asked_for else body is asked.body


@pytest.mark.parametrize("dialect", ["chat", "completions"])
def test_a_usage_that_we_ask_for_comes_once(dialect: str) -> None:
    """When the tap requests usage, it removes `continuous_usage_stats`, which had no effect before but now would, or would be rejected."""
    body = orjson.dumps({"model": "m", "stream": True, "stream_options": {"continuous_usage_stats": True, "x": 1}})

    asked = apply_changes(ROUTES[dialect], body, BodyChanges(upgrade=False, usage=True, fields={}))

    assert {"include_usage": True, "x": 1} == orjson.loads(asked.body)["stream_options"]
    assert asked.hides_usage


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=ROUTES)
def test_a_usage_that_is_asked_for_is_not_hidden(dialect: Dialect) -> None:
    """A request that already has the usage option is not changed."""
    assert None is dialect.with_usage({"stream": True, "stream_options": {"include_usage": True}})


@pytest.mark.parametrize("left_out", ["as_stream", "with_usage", "salted", "chat_request", "chat_reply"])
def test_an_incomplete_dialect_cannot_be_instantiated(left_out: str) -> None:
    """A dialect that lacks one of the methods for requests cannot be instantiated."""
    forgetful = type("Forgetful", (ChatReader,), {left_out: getattr(DialectReader, left_out)})

    with pytest.raises(TypeError, match=f"abstract method '?{left_out}"):
        forgetful()
