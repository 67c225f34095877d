"""A short look at an endpoint's speed, one chat at a time. Rough: by the clock of this process, not by the tap's."""

from __future__ import annotations

import json
import statistics
import time
from http.client import HTTPException
from typing import NamedTuple

from pytest_agentbench.backends.proof.api import Api
from pytest_agentbench.errors import BackendError
from pytest_agentbench.records import Endpoint, Json

CHATS, TOKENS = 3, 64
TIMEOUT = 120.0  # seconds for a chat


class Speed(NamedTuple):
    """Medians over the chats."""

    ttft_ms: float
    e2e_ms: float
    tokens_per_s: float | None  # after the first one; None where there was only one


def probe(endpoint: Endpoint) -> Speed:
    """Raises BackendError when a chat brings no token."""
    firsts, wholes, rates = zip(*(_chat(endpoint, number) for number in range(CHATS)), strict=True)
    known = [rate for rate in rates if rate is not None]
    return Speed(statistics.median(firsts) * 1e3, statistics.median(wholes) * 1e3, statistics.median(known) if known else None)


def _chat(endpoint: Endpoint, number: int) -> tuple[float, float, float | None]:
    """(seconds to the first token, to the end, tokens a second in between)."""
    body = {
        "model": endpoint.model,
        "messages": [{"role": "user", "content": f"Count from {number} to one hundred, in words."}],
        "max_tokens": TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    api, tokens, events = Api(endpoint), 0, []
    started = time.monotonic()
    try:
        with api.open("/chat/completions", body, TIMEOUT) as answer:
            for line in answer:
                event = _event(line)
                tokens = (event.get("usage") or {}).get("completion_tokens") or tokens
                events += [time.monotonic()] * _has_text(event)
    except (OSError, HTTPException) as error:
        raise BackendError(f"a chat that streams failed: {error}") from error
    ended = time.monotonic()
    if not events:
        raise BackendError("a chat that streams brought no token")
    spent, count = events[-1] - events[0], (tokens or len(events)) - 1
    return events[0] - started, ended - started, count / spent if count and spent else None


def _event(line: bytes) -> Json:
    data = line.removeprefix(b"data:").strip()
    try:
        event = json.loads(data) if line.startswith(b"data:") and data != b"[DONE]" else {}
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _has_text(event: Json) -> bool:
    deltas = [choice.get("delta") or {} for choice in event.get("choices") or ()]
    return any(delta.get(name) for delta in deltas for name in ("content", "reasoning", "reasoning_content", "tool_calls"))
