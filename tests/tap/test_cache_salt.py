"""A salt is the first text of the system prompt, whatever the API, and nothing else of a request changes."""

from __future__ import annotations

import orjson
import pytest

from pytest_agentbench.records import Json
from pytest_agentbench.tap.dialects import DIALECTS
from pytest_agentbench.tap.upgrade import Wish, ask

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
    """In front of the system prompt; what has none gets one, and what is not understood stays as it is."""
    asked = {"model": "m", "tools": [{"type": "function"}], **body}

    salted = ask(ROUTES[dialect], orjson.dumps(asked), Wish(upgrade=False, usage=False, fields={}, salt=SALT))

    assert {**asked, **changed} == orjson.loads(salted.body)


def test_without_a_salt_bytes_stay_bytes() -> None:
    """A body that nothing is added to is passed on as it came."""
    body = b'{"model":  "m", "messages": []}'

    assert body is ask(ROUTES["chat"], body, Wish(upgrade=False, usage=False, fields={})).body
