"""Says what would work, for mistakes in code of a suite whose exceptions do not say it themselves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import orjson

import pytest_agentbench
from pytest_agentbench.errors import did_you_mean
from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.lib.foreign import cut
from pytest_agentbench.llm.client import Reply
from pytest_agentbench.records import Json

LISTED = 16  # attributes that a message lists at most

KEY = 64  # bytes of a key that a message lists

#: Words of an exception's text -> what would work.
ADVICE = {
    "'coroutine' object": "`await` is missing before the call that returned it",
    "Object of type Tool is not JSON serializable": "send `tools.schemas`, which has the tools of the scenario as a request needs them",
    "Missing credentials": "llm.openai() returns a client that needs none, and whose calls are measured (llm.base_url is its address)",
    "missing 1 required positional argument: 'turn'": (
        "it is the number of the model's answer that asks for the call, from 1, as in `for turn in range(1, 7)`"
    ),
}

_NO_DICT = re.compile(r"'(\w+)' object is not subscriptable")


def error_text(error: BaseException, most: int, kind: str = "") -> str:
    """Returns kind, text and advice for an exception of the suite's code, without the line that raised it.

    Args:
        error: The exception.
        most: Largest number of bytes of its own text.
        kind: What stands before the text, instead of the name of the exception's type.
    """
    text, advice = cut(str(error), most), advice_on(error)
    return f"{kind or type(error).__name__}: {text.rstrip('.') if advice else text}{advice}"


def advice_on(error: BaseException) -> str:
    """Returns what would work, to follow the text of an exception of the suite's code, or an empty text."""
    text = str(error)
    for words, advice in ADVICE.items():
        if words in text:
            return f"; {advice}"
    if isinstance(error, NameError) and error.name in pytest_agentbench.__all__:
        return f"; write `from pytest_agentbench import {error.name}` at the top of the file"
    if isinstance(error, AttributeError) and isinstance(error.obj, dict):
        keys = [cut(repr(key), KEY) for key in error.obj][:LISTED]
        return f"; it has keys instead of attributes, as in x[{error.name!r}]: {', '.join(keys) or 'none'}"
    if isinstance(error, AttributeError) and _is_ours(type(error.obj)):
        return f"{did_you_mean(str(error.name), _attributes(type(error.obj)))}; it has: {', '.join(_attributes(type(error.obj)))}"
    if isinstance(error, TypeError) and (match := _NO_DICT.match(text)) and (cls := _public_class(match[1])) is not None:
        return f"; it has attributes instead of keys: {', '.join(_attributes(cls))}"
    return ""


def _is_ours(cls: type) -> bool:
    return cls.__module__.startswith("pytest_agentbench.")


def _public_class(name: str) -> type | None:
    if name == Reply.__name__:  # What `llm.chat` returns
        return Reply
    cls = getattr(pytest_agentbench, name) if name in pytest_agentbench.__all__ else None
    return cls if isinstance(cls, type) else None


def _attributes(cls: type) -> list[str]:
    """Returns the first public attributes of a class, in the order of its source."""
    names = [*getattr(cls, "__dataclass_fields__", ()), *vars(cls)]
    return [name for name in dict.fromkeys(names) if not name.startswith("_")][:LISTED]


#: Log message about a result of `tools.call` that the agent encoded once more. Its argument is the text that the model got.
ENCODED_TWICE = "the result of tools.call is a text for the model, but json.dumps was applied to it, so the model got %s; send it unchanged"


def encoded_twice(messages: Sequence[Json]) -> str:
    """Returns the beginning of the first tool message whose text is a JSON string with a JSON object or list in it. Empty if none is."""
    texts = (message.get("content") for message in messages if message.get("role") == "tool")
    return next((beginning(text, KEY) for text in texts if isinstance(text, str) and isinstance(_json(_json(text)), dict | list)), "")


def _json(text: Any) -> Any:
    """Returns the value of a JSON text, or None for anything else."""
    try:
        return orjson.loads(text) if isinstance(text, str) else None
    except orjson.JSONDecodeError:
        return None
