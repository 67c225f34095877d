"""ATIF, the trajectories of Harbor's agents: steps with messages, tool calls and token counts, and no time of a first token."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports.files import dig, iso_ns, read_object
from pytest_agentbench.records import Json, LLMCall, ToolCall


class Trajectory(NamedTuple):
    """What an agent did."""

    calls: tuple[LLMCall, ...] = ()  # with tokens and without times: a step has one stamp, and nobody says of what
    tool_calls: tuple[ToolCall, ...] = ()
    messages: tuple[Json, ...] = ()
    answer: str = ""
    several: int = 0  # steps of several LLM calls, which are one record


def read_trajectory(file: Path) -> Trajectory:
    """The trajectory of a file; raises ConfigError."""
    data = read_object(file, "schema_version", "steps")
    if not str(data["schema_version"]).startswith("ATIF-"):
        raise ConfigError(f"{file}: schema_version is {data['schema_version']!r}, should be ATIF-...")
    steps = data["steps"]
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise ConfigError(f"{file}: steps should be an array of objects")
    agent = [step for step in steps if step.get("source") == "agent"]
    model = dig(data, "agent", "model_name") or ""
    answers = [step["message"] for step in agent if isinstance(step.get("message"), str)]
    return Trajectory(
        calls=tuple(_call(step, model, file) for step in agent if step.get("llm_call_count", 1) != 0),
        tool_calls=tuple(_tool_calls(agent)),
        messages=tuple(message for step in steps for message in _messages(step)),
        answer=answers[-1] if answers else "",
        several=sum((step.get("llm_call_count") or 1) > 1 for step in agent),
    )


def _call(step: Json, model: str, file: Path) -> LLMCall:
    at = iso_ns(step.get("timestamp"), file) or 0
    completion = dig(step, "metrics", "completion_tokens")
    return LLMCall(
        received_ns=at,
        sent_ns=None,
        ended_ns=at,
        model=step.get("model_name") or model,
        prompt_tokens=dig(step, "metrics", "prompt_tokens"),
        completion_tokens=completion,
        cached_tokens=dig(step, "metrics", "cached_tokens"),
        token_source="none" if completion is None else "usage",
    )


def _tool_calls(agent: Sequence[Json]) -> Iterator[ToolCall]:
    for turn, step in enumerate(agent, 1):
        for call in step.get("tool_calls") or ():
            arguments = call.get("arguments")
            raw = None if isinstance(arguments, dict) else str(arguments)
            yield ToolCall(str(call.get("function_name", "")), arguments if isinstance(arguments, dict) else {}, turn, raw=raw)


def _messages(step: Json) -> Iterator[Json]:
    """A step in Chat Completions form, its results after it."""
    role = {"agent": "assistant"}.get(step.get("source", ""), step.get("source", "user"))
    calls = [
        {
            "id": call.get("tool_call_id", ""),
            "type": "function",
            "function": {"name": call.get("function_name", ""), "arguments": json.dumps(call.get("arguments"))},
        }
        for call in step.get("tool_calls") or ()
    ]
    yield {"role": role, "content": step.get("message"), **({"tool_calls": calls} if calls else {})}
    for result in dig(step, "observation", "results") or ():
        yield {"role": "tool", "tool_call_id": result.get("source_call_id"), "content": result.get("content")}
