"""Converts messages of all APIs to the form of Chat Completions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

#: Types of items and blocks that show how a model reasoned. Chat Completions has no messages of this kind.
REASONING = ("reasoning", "thinking", "redacted_thinking")


def chat_messages(dialect: str, messages: Sequence[Any]) -> list[dict[str, Any]]:
    """Returns the messages of a request or a reply in the form of Chat Completions, in which a tool result is a message of its own.

    A text becomes a message of the user. Reasoning, and items of Responses without a form in Chat Completions, are left out.

    Args:
        dialect: The API, as in `LLMCall.dialect`.
        messages: Messages of that API, or the parts of a prompt that is a text.
    """
    if messages and all(isinstance(message, str) for message in messages):
        return [{"role": "user", "content": "".join(messages)}]
    known = [message for message in messages if isinstance(message, dict)]
    if dialect == "chat":
        return known
    made: list[dict[str, Any]] = []
    for message in known:
        for each in _converted(message):
            before = made[-1] if made else {}
            if before.get("role") == each["role"] == "assistant" and each["content"] is None:  # calls that belong to the text before
                made[-1] = {**before, "tool_calls": [*before.get("tool_calls", ()), *each["tool_calls"]]}
            else:
                made.append(each)
    return made


def reply_messages(reply: Any) -> list[Any]:
    """Returns the messages in a complete answer, in the form of its API, or an error response as it is."""
    match reply:
        case {"choices": [*choices]}:  # Chat Completions and Completions
            return [choice.get("message") or {"role": "assistant", "content": choice.get("text")} for choice in choices]
        case {"output": [*items]}:  # Responses
            return items
        case {"role": role, "content": content}:  # Messages
            return [{"role": role, "content": content}]
        case _:
            return [reply]


def _converted(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    match message:
        case {"type": "function_call", "call_id": id, "name": name, "arguments": arguments}:
            yield {"role": "assistant", "content": None, "tool_calls": [_call(id, name, arguments)]}
        case {"type": "function_call_output", "call_id": id, "output": output}:
            yield {"role": "tool", "tool_call_id": id, "content": _content(output)}
        case {"role": role, "content": content}:
            blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
            yield from (
                {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": _content(block.get("content"))}
                for block in blocks
                if block.get("type") == "tool_result"
            )
            calls = [
                _call(block.get("id"), block.get("name"), json.dumps(block.get("input"), ensure_ascii=False))
                for block in blocks
                if block.get("type") == "tool_use"
            ]
            rest = [block for block in blocks if block.get("type") not in ("tool_result", "tool_use", *REASONING)]
            if rest or calls or not blocks:
                text = _content(rest) if blocks else content
                yield {"role": role, "content": text or None if calls else text, **({"tool_calls": calls} if calls else {})}


def _call(id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _content(content: Any) -> Any:
    """Returns a list of texts as one text, and other content unchanged."""
    if isinstance(content, list) and all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content):
        return "".join(part["text"] for part in content)
    return content
