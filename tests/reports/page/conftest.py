"""Fixtures: pages in a real browser, and runs with any texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.records import Chunk, LLMCall, Rollout, Score, ToolCall

BEGAN = 1_000_000_000_000  # nanoseconds


def call(at_ms: int, tokens: int = 4, **changes: Any) -> LLMCall:
    """Returns a call at some milliseconds after the start of the rollout. Its tokens start after 20 ms, 10 ms apart."""
    at = BEGAN + at_ms * 1_000_000
    chunks = tuple(Chunk(at + (20 + 10 * number) * 1_000_000, "content") for number in range(tokens))
    ended = at + (20 + 10 * tokens) * 1_000_000
    facts: dict[str, Any] = {"called_ns": at, "completion_tokens": tokens, "prompt_tokens": 7, "finish_reason": "stop", **changes}
    return LLMCall(at + 1_000_000, at + 2_000_000, ended, chunks, **facts)


def rollout(scenario: str = "shop-1", score: float = 1.0, **changes: Any) -> Rollout:
    """Returns a rollout with a question, a tool call, an answer, and one LLM call."""
    facts: dict[str, Any] = {
        "started_at": 1_700_000_000.0,
        "started_ns": BEGAN,
        "ended_ns": BEGAN + 100_000_000,
        "calls": (call(0),),
        "tool_calls": (ToolCall("find_item", {"item": "lamp"}, 1),),
        "expected": ({"tool": "order_item", "parameters": {"item": "lamp"}},),
        "messages": ({"role": "user", "content": f"Is there a lamp, {scenario}?"}, {"role": "assistant", "content": "Yes."}),
        "answer": "Yes.",
        "turns": 1,
        "scores": {"tsq": Score(score, {"recall": score}, "because")},
        **changes,
    }
    return Rollout(suite="shop", scenario=scenario, variant="default", trial=1, **{"status": "ok", **facts})


@pytest.fixture
def opened(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Returns a function that opens a page.

    At the end it checks that the page wrote nothing to the console, requested nothing and ran no foreign code.
    """
    contexts, said, asked = [], [], []

    def open_page(file: Path, link: str = "", **context: Any) -> Any:
        contexts.append(chromium.new_context(**{"viewport": {"width": 1200, "height": 800}, **context}))
        page = contexts[-1].new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(f"dialog {dialog.message}"))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{file.as_uri()}{link}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [] == said
    assert [] == [url for url in asked if not url.startswith("file:") or ".html" not in url]


def poll(page: Any, expression: str, tries: int = 200) -> Any:
    """Waits until an expression is true, and returns its value."""
    for _ in range(tries):
        if value := page.evaluate(expression):
            return value
        page.wait_for_timeout(50)
    raise AssertionError(f"never: {expression}")
