"""A salt in front of the system prompt, so that no prompt begins like one of another run: a cold prefix cache without a reset."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pytest_agentbench.records import Json


def salted(dialect: str, body: Json, salt: str) -> Json:
    """The body with the salt; unchanged where nobody knows of a system prompt."""
    place = PLACES.get(dialect)
    return place(body, salt) if place else body


def _in_messages(body: Json, salt: str) -> Json:
    """Chat Completions: in the first message, if it is a system message, or as one before all others."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return body
    first = messages[0] if messages and isinstance(messages[0], dict) else {}
    if first.get("role") in ("system", "developer"):
        return {**body, "messages": [{**first, "content": _before(first.get("content"), salt)}, *messages[1:]]}
    return {**body, "messages": [{"role": "system", "content": salt}, *messages]}


def _in_instructions(body: Json, salt: str) -> Json:
    """Responses."""
    return {**body, "instructions": _before(body.get("instructions"), salt)}


def _in_system(body: Json, salt: str) -> Json:
    """Messages."""
    return {**body, "system": _before(body.get("system"), salt)}


def _in_prompt(body: Json, salt: str) -> Json:
    """Completions, where the prompt is a text."""
    prompt = body.get("prompt")
    return {**body, "prompt": _before(prompt, salt)} if isinstance(prompt, str) else body


def _before(content: object, salt: str) -> object:
    """The salt before a text, or before a list of parts."""
    if isinstance(content, list):
        return [{"type": "text", "text": salt}, *content]
    return f"{salt}\n{content}" if content else salt


PLACES: Mapping[str, Callable[[Json, str], Json]] = {
    "chat": _in_messages,
    "completions": _in_prompt,
    "responses": _in_instructions,
    "messages": _in_system,
}
