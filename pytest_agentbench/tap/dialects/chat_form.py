"""Parts of messages in the form of Chat Completions, to which each dialect converts its requests and answers for people and judges.

Texts, reasoning, tool calls and their results are converted. Other content, such as an image, stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pytest_agentbench.records import Json


def objects(values: Any) -> list[Json]:
    """Returns the objects in a list, or an empty list if `values` is not a list."""
    return [each for each in values if isinstance(each, dict)] if isinstance(values, list) else []


def joint(role: Any) -> str:
    """Returns the separator with which several texts of a message are joined: none if the model wrote them, else a line break."""
    return "" if role == "assistant" else "\n"


def content(value: Any, between: str = "\n") -> Any:
    """Returns the content of a message: one text for a text or a list of texts, otherwise a list of parts."""
    if isinstance(value, str):
        return value
    parts = [{"type": "text", "text": each["text"]} if isinstance(each.get("text"), str) else each for each in objects(value)]
    if all(part.get("type") == "text" for part in parts):
        return between.join(part["text"] for part in parts)
    return parts


def instructions(value: Any) -> list[Json]:
    """Returns a list with a system message for instructions that a request has in a separate field. Empty without instructions."""
    return [{"role": "system", "content": content(value)}] if value else []


def thought(role: Any, text: str) -> Json:
    """Returns a Chat Completions message that contains only reasoning."""
    return {"role": role, "content": "", "reasoning_content": text}


def calling(role: Any, id: Any, name: Any, arguments: Any) -> Json:
    """Returns a Chat Completions message that contains only a tool call. `arguments` is an object, or its JSON text."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"role": role, "content": "", "tool_calls": [{"id": id, "type": "function", "function": {"name": name, "arguments": text}}]}


def result(id: Any, value: Any) -> Json:
    """Returns the message with the result of the tool call `id`."""
    return {"role": "tool", "tool_call_id": id, "content": content(value)}


def merged(messages: Iterable[Json], *roles: str, between: str = "\n") -> list[Json]:
    """Joins adjacent messages of the same role, if the role is one of `roles`. Returns all messages.

    `between` separates the texts of a joined message.
    """
    turns: list[Json] = []
    for message in messages:
        if turns and message["role"] in roles and message["role"] == turns[-1]["role"]:
            turns[-1] = _both(turns[-1], message, between)
        else:
            turns.append(message)
    return turns


def _both(one: Json, other: Json, between: str) -> Json:
    message = {**one, **other, "content": _both_contents(one["content"], other["content"], between)}
    if "reasoning_content" in one and "reasoning_content" in other:
        message["reasoning_content"] = f"{one['reasoning_content']}\n{other['reasoning_content']}"
    if "tool_calls" in one and "tool_calls" in other:
        message["tool_calls"] = [*one["tool_calls"], *other["tool_calls"]]
    return message


def _both_contents(one: Any, other: Any, between: str) -> Any:
    if isinstance(one, str) and isinstance(other, str):
        return between.join(filter(None, (one, other)))
    return [*_parts(one), *_parts(other)]


def _parts(value: Any) -> list[Json]:
    return value if isinstance(value, list) else [{"type": "text", "text": value}] if value else []
