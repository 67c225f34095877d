"""Reads the trajectories of Harbor's agents (ATIF files) as messages and calls, and writes rollouts as trajectories of ATIF 1.8."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports.files import dig, iso_ns, member, members, read_object
from pytest_agentbench.metrics import registry
from pytest_agentbench.metrics.columns import RolloutPlace
from pytest_agentbench.records import Json, LLMCall, ToolCall


class Trajectory(NamedTuple):
    """The calls, messages and answer of an agent, as read from an ATIF file."""

    calls: tuple[LLMCall, ...] = ()  # with tokens but without times, because a step has one timestamp of unknown meaning
    tool_calls: tuple[ToolCall, ...] = ()
    messages: tuple[Json, ...] = ()
    answer: str = ""
    several: int = 0  # steps of several LLM calls, which are one record


def read_trajectory(file: Path) -> Trajectory:
    """Reads the trajectory in an ATIF file. Raises ConfigError if the file is invalid."""
    data = read_object(file, "schema_version", "steps")
    if not str(data["schema_version"]).startswith("ATIF-"):
        raise ConfigError(f"{file}: schema_version is {data['schema_version']!r}, must be ATIF-..., such as ATIF-v1.8")
    steps = data["steps"]
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise ConfigError(f"{file}: steps must be an array of objects")
    agent = [step for step in steps if step.get("source") == "agent"]
    model = dig(data, "agent", "model_name") or ""
    texts = [step["message"] for step in agent if isinstance(step.get("message"), str)]
    return Trajectory(
        calls=tuple(_call(step, model, file) for step in agent if member(step, "llm_call_count", int, file) != 0),
        tool_calls=tuple(_tool_calls(agent, file)),
        messages=tuple(message for step in steps for message in _messages(step, file)),
        answer=texts[-1] if texts else "",
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
    """Converts a step of a trajectory to Chat Completions messages: one for the step, then one for each of its tool results."""
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


SCHEMA_VERSION = "ATIF-v1.8"
SOURCES = {"assistant": "agent", "system": "system"}  # roles; all others are the user's


def trajectory(place: RolloutPlace, agent: Json) -> Json | None:
    """Returns a rollout as an ATIF trajectory, or None if the rollout has no transcript, because a trajectory needs at least one step."""
    rollout = place.rollout
    steps = [*_steps(place)]
    if not steps:
        return None
    good = [call for call in rollout.calls if call.error_kind is None]
    totals = {
        "total_prompt_tokens": total(call.prompt_tokens for call in good),
        "total_completion_tokens": total(call.completion_tokens for call in good),
        "total_cached_tokens": total(call.cached_tokens for call in good),
        "total_steps": len(steps),
    }
    return {
        "schema_version": SCHEMA_VERSION,
        "session_id": f"{place.origin.run}/{rollout.key}",
        "agent": agent,
        "steps": steps,
        "final_metrics": known(totals),
    }


def total(counts: Iterator[int | None]) -> int | None:
    """Returns the sum of the counts that are not None, or None if there are none."""
    values = [count for count in counts if count is not None]
    return sum(values) if values else None


def known(values: Mapping[str, Any]) -> Json:
    """Returns the mapping without the keys whose value is None."""
    return {name: value for name, value in values.items() if value is not None}


def _steps(place: RolloutPlace) -> Iterator[Json]:
    """Yields a trajectory step for each message of a rollout. Tool results are part of the step before them."""
    messages, calls = place.rollout.messages, iter(_calls(place))
    starts = [number for number, message in enumerate(messages) if message.get("role") != "tool"]
    for step_id, number in enumerate(starts, 1):
        message = messages[number]
        source = SOURCES.get(str(message.get("role")), "user")
        step: Json = {"step_id": step_id, "source": source, "message": _text(message.get("content"))}
        if source == "agent":
            call = next(calls, None)
            step |= _work(message, [*_results(messages, number)]) | (_measured(place, call) if call else {})
        yield step


def _calls(place: RolloutPlace) -> Sequence[LLMCall]:
    """Returns the successful LLM calls, one for each assistant message, or none if their numbers differ."""
    good = [call for call in place.rollout.calls if call.error_kind is None]
    answers = sum(message.get("role") == "assistant" for message in place.rollout.messages)
    return good if len(good) == answers else ()


def _results(messages: Sequence[Json], number: int) -> Iterator[Json]:
    """Yields the tool results that directly follow the message at an index."""
    for message in messages[number + 1 :]:
        if message.get("role") != "tool":
            return
        yield message


def _work(message: Json, results: Sequence[Json]) -> Json:
    """Returns the part of a trajectory step (keys and values) with the tool calls of a message and their results."""
    called = [_tool_call(number, call) for number, call in enumerate(message.get("tool_calls") or ())]
    ids = {call["tool_call_id"] for call in called}
    results = [
        known({"source_call_id": id if (id := result.get("tool_call_id")) in ids else None, "content": _text(result.get("content"))})
        for result in results
    ]
    return {**({"tool_calls": called} if called else {}), **({"observation": {"results": results}} if results else {})}


def _tool_call(number: int, call: Json) -> Json:
    """Converts a Chat Completions tool call to ATIF. Arguments that are not a JSON object are kept as text in `extra`."""
    function = call.get("function") or {}
    raw = function.get("arguments")
    try:
        arguments = json.loads(raw) if isinstance(raw, str) else raw
    except ValueError:
        arguments = None
    fits = isinstance(arguments, dict)
    names = {"tool_call_id": str(call.get("id") or f"call-{number + 1}"), "function_name": str(function.get("name", ""))}
    return {**names, "arguments": arguments if fits else {}, **({} if fits else {"extra": {"raw": raw}})}


def _measured(place: RolloutPlace, call: LLMCall) -> Json:
    """Returns the part of a trajectory step (keys and values) about its LLM call: time, model, tokens, and durations in milliseconds."""
    values = {metric.key: metric.of_call(call) for metric in registry.METRICS if metric.level == "call" and metric.of_call}
    durations = {name: value / 1e6 for name, value in values.items() if value is not None}
    tokens = {"prompt_tokens": call.prompt_tokens, "completion_tokens": call.completion_tokens, "cached_tokens": call.cached_tokens}
    at = place.origin.calendar.epoch_ns(place.rollout.session, call.sent_ns)
    step = {"timestamp": None if at is None else iso(at), "model_name": call.answered_by or call.model or None, "llm_call_count": 1}
    return {**known(step), "metrics": {**known(tokens), **({"extra": durations} if durations else {})}}


def iso(at: int) -> str:
    """Converts nanoseconds since 1970 to ISO 8601, with microseconds."""
    seconds, rest = divmod(at, 10**9)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1000).isoformat()


def _text(content: object) -> str:
    """Returns the content of a message as text; other content is returned as JSON."""
    return content if isinstance(content, str) else "" if content is None else json.dumps(content, ensure_ascii=False, default=str)
