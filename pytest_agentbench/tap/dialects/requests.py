"""What dialects do to requests: make a stream of them, ask for its usage, and put a text in front of all others."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pytest_agentbench.lib import json_text
from pytest_agentbench.records import Json

#: Option of streams that have a usage in every event. It says nothing where no usage is asked for, and some servers refuse it.
RUNNING = "continuous_usage_stats"


def written(request: Json) -> bytes | None:
    """A request's body; None where it cannot be written."""
    try:
        return json_text.dumps(request)
    except ValueError:
        return None


def without_running_usage(request: Json) -> Json:
    """The request without the wish for a usage in every event (`continuous_usage_stats`); the same object where it has none."""
    options = request.get("stream_options")
    if not isinstance(options, dict) or RUNNING not in options:
        return request
    return {**request, "stream_options": {name: value for name, value in options.items() if name != RUNNING}}


def stream_body(request: Json, not_streamed: Collection[str], **more: Any) -> bytes | None:
    """A request body that asks for the same as a stream.

    None for one that streams already, has a field that servers refuse to stream with, or cannot be written.
    """
    if request.get("stream") not in (None, False) or any(request.get(name) for name in not_streamed):
        return None
    return written({**request, "stream": True, **more})


def usage_body(request: Json) -> bytes | None:
    """The body that asks for a stream's usage as well, once; None where it does, or cannot be written."""
    options = without_running_usage(request).get("stream_options")
    options = options if isinstance(options, dict) else {}
    if options.get("include_usage"):
        return None
    return written({**request, "stream_options": {**options, "include_usage": True}})


def in_front(salt: str, content: object) -> object:
    """The salt before a text, or before a list of parts."""
    if isinstance(content, list):
        return [{"type": "text", "text": salt}, *content]
    return f"{salt}\n{content}" if content else salt
