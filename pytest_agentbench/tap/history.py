"""What a request repeats of the model's earlier answers: tool calls whose arguments are no JSON object, which servers refuse to read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pytest_agentbench.lib import json_text
from pytest_agentbench.records import Json

#: Statuses with which servers refuse what a request says.
REFUSALS = frozenset({400, 422})


def holds_broken_arguments(body: bytes) -> bool:
    """Whether a request of any dialect gives back tool calls whose arguments are no JSON object."""
    return not all(map(_is_object, _arguments(json_text.json_object(body) or {})))


def _arguments(request: Json) -> Iterator[Any]:
    for message in (*_objects(request.get("messages")), *_objects(request.get("input"))):
        if message.get("type") == "function_call":  # Responses
            yield message.get("arguments")
        if message.get("role") != "assistant":
            continue
        functions = [*_objects([call.get("function") for call in _objects(message.get("tool_calls"))])]
        yield from (function.get("arguments") for function in (*functions, *_objects([message.get("function_call")])))  # Chat Completions
        yield from (block.get("input") for block in _objects(message.get("content")) if block.get("type") == "tool_use")  # Messages


def _objects(value: Any) -> Iterator[Json]:
    return (each for each in value if isinstance(each, dict)) if isinstance(value, list) else iter(())


def _is_object(arguments: Any) -> bool:
    if isinstance(arguments, str):
        return json_text.json_object(arguments.encode(errors="surrogatepass")) is not None
    return isinstance(arguments, dict)
