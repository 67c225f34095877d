"""Rollouts with known times, for tests of tables and exports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest_agentbench.records import Attempt, Chunk, LLMCall, Program, Rollout, Score, ToolCall

MS = 1_000_000
NOON = 1_700_000_000.0  # seconds since 1970, when the clock of session 1 was at 1,000 s
START = 1_000_000 * MS


def call(at: int, *events: int, end: int, **changes: Any) -> LLMCall:
    """Returns a successful call. Times of sending, events and end are milliseconds after the start."""
    stamps = tuple(Chunk(START + event * MS, "content") for event in events)
    made = LLMCall(START + at * MS, START + at * MS, START + end * MS, stamps, called_ns=START + at * MS, dialect="chat", model="m")
    counted = replace(made, prompt_tokens=100, completion_tokens=len(events), cached_tokens=60, token_source="usage", http_status=200)
    return replace(counted, finish_reason="stop", **changes)


def rollout(scenario: str = "shop-0", at: int = 0, end: int = 1_000, **changes: Any) -> Rollout:
    """Returns a rollout from `at` to `end`, milliseconds after the start of the run."""
    made = Rollout("shop", scenario, "default", 1, "ok", started_at=NOON + at / 1e3, started_ns=START + at * MS, ended_ns=START + end * MS)
    return replace(made, **changes)


#: Two calls with a call of the right tool between them, and a call of a judge.
BOUGHT = rollout(
    calls=(call(0, 100, 120, 160, end=200), call(500, 700, end=800)),
    other_calls=(call(850, 900, end=950, model="judge", role="judge"),),
    tool_calls=(ToolCall("find_item", {"item": "lamp"}, 1, started_ns=START + 250 * MS, ended_ns=START + 450 * MS),),
    expected=({"tool": "find_item", "parameters": {"item": "lamp"}},),
    answer="Here it is.",
    turns=2,
    messages=(
        {"role": "user", "content": "Is there a lamp?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "find_item", "arguments": '{"item": "lamp"}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": '{"done": true}'},
        {"role": "assistant", "content": "Here it is."},
    ),
    scores={"tsq": Score(1.0, {"precision": 1.0, "recall": 1.0}, "all of it")},
    settings={"kind": "tool_calling"},
)

#: A first attempt whose call failed in the backend, and a second attempt without a tool call, for which a scorer failed.
TRIED = rollout(
    "shop-1",
    at=400,
    end=1_400,
    attempt=2,
    earlier_attempts=(
        Attempt(
            1,
            "infra_error",
            "HTTP 500",
            started_ns=START + 100 * MS,
            ended_ns=START + 300 * MS,
            calls=(call(150, end=250, error_kind="server_error", error="HTTP 500", http_status=500),),
        ),
    ),
    calls=(call(600, 1_000, 1_200, end=1_300),),
    programs=(Program(0, START + 500 * MS, START + 1_350 * MS, 0.1, 20.0),),
    expected=({"tool": "find_item", "parameters": {"item": "lamp"}},),
    answer="There is none.",
    turns=1,
    messages=({"role": "user", "content": "Is there a lamp?"}, {"role": "assistant", "content": "There is none."}),
    scores={"tsq": Score(0.0, {}, "")},
    score_errors={"exact": "ValueError: no label"},
    settings={"kind": "tool_calling"},
)

#: A rollout that never reached a model.
LOST = rollout("shop-2", at=1_400, end=1_500, status="infra_error", reason="no connection")

ALL = (BOUGHT, TRIED, LOST)
