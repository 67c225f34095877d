"""The slowest LLM calls in tables: cells that a terminal and a file have alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pytest_agentbench.metrics.slow_calls import SlowCall
from pytest_agentbench.reports.markup import code, table
from pytest_agentbench.reports.words import number

CALL_COLUMNS = ("ms", "rollout", "call", "queue", "first token", "decoding", "prompt", "cached", "output")
WHY = "`agentbench show RUN --profile` says why, and has the agents' call tree, concurrency spikes, and what prompts share"


def markdown(calls: Sequence[SlowCall]) -> Iterator[str]:
    """The section of report.md; nothing without a call whose time is known."""
    if calls:
        yield "\n### Slowest LLM calls\n"
        yield from table([*CALL_COLUMNS, "failed"], [[*call_cells(call, code), call.error_kind or ""] for call in calls])
        yield f"\nTimes are milliseconds, then tokens. {WHY}."


def call_cells(call: SlowCall, name: Callable[[str], str] = str) -> list[str]:
    """The cells of CALL_COLUMNS; `name` writes the name of a rollout."""
    place = f"{call.number} of {call.of}" + f", attempt {call.attempt}" * (call.attempt > 1)
    times = map(number, (call.queue_ms, call.first_token_ms, call.decoding_ms))
    counts = map(count_text, (call.prompt_tokens, call.cached_tokens, call.output_tokens))
    return [number(call.total_ms), name(call.rollout), place, *times, *counts]


def count_text(value: int | None) -> str:
    """`1,234`, and `-` for nothing."""
    return number(value, 0)
