"""ATIF, the trajectories of Harbor's agents: steps with messages, tool calls and token counts, and no time of a first token."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports.files import dig, iso_ns, member, members, read_object
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
    said = [step["message"] for step in agent if isinstance(step.get("message"), str)]
    return Trajectory(
        calls=tuple(_call(step, model, file) for step in agent if member(step, "llm_call_count", int, file) != 0),
        tool_calls=tuple(_tool_calls(agent, file)),
        messages=tuple(message for step in steps for message in _messages(step, file)),
        answer=said[-1] if said else "",
        several=sum((step.get("llm_call_count") or 1) > 1 for step in agent),
    )


def _call(step: Json, model: str, file: Path) -> LLMCall:
    at = iso_ns(step.get("timestamp"), file) or 0
    metrics = member(step, "metrics", dict, file) or {}
    prompt, completion, cached = (member(metrics, f"{name}_tokens", int, file) for name in ("prompt", "completion", "cached"))
    return LLMCall(
        received_ns=at,
        sent_ns=None,
        ended_ns=at,
        model=member(step, "model_name", str, file) or model,
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached,
        token_source="none" if completion is None else "usage",
    )


def _tool_calls(agent: Sequence[Json], file: Path) -> Iterator[ToolCall]:
    for turn, step in enumerate(agent, 1):
        for call in members(step, "tool_calls", file):
            arguments = call.get("arguments")
            raw = None if isinstance(arguments, dict) else str(arguments)
            yield ToolCall(str(call.get("function_name", "")), arguments if isinstance(arguments, dict) else {}, turn, raw=raw)


def _messages(step: Json, file: Path) -> Iterator[Json]:
    """A step in Chat Completions form, its results after it."""
    source = member(step, "source", str, file) or "user"
    calls = [
        {
            "id": call.get("tool_call_id", ""),
            "type": "function",
            "function": {"name": call.get("function_name", ""), "arguments": json.dumps(call.get("arguments"))},
        }
        for call in members(step, "tool_calls", file)
    ]
    content = step.get("message") if isinstance(step.get("message"), str) else members(step, "message", file) or None
    yield {"role": {"agent": "assistant"}.get(source, source), "content": content, **({"tool_calls": calls} if calls else {})}
    for result in members(member(step, "observation", dict, file) or {}, "results", file):
        yield {"role": "tool", "tool_call_id": result.get("source_call_id"), "content": result.get("content")}
