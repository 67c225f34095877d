"""Writes the calls of a run as the events of the NeMo Agent Toolkit's profiler."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from types import MappingProxyType
from typing import NamedTuple

from pytest_agentbench.exports.nat_messages import (
    CallMessages,
    RolloutMessages,
    generation,
    langchain_message,
    output_text,
    question,
    tool_schema,
)
from pytest_agentbench.exports.nat_profiler import EVENT_COLUMNS, FRAMEWORK
from pytest_agentbench.metrics.columns import RolloutPlace
from pytest_agentbench.metrics.other_tools.measures import called_ns
from pytest_agentbench.records import OUTPUT_KINDS, Attempt, Json, LLMCall, ToolCall

TOKEN = "…"  # the text of an event with output, because the real text is not recorded
WORKFLOW = "<workflow>"


class ProfilerEvent(NamedTuple):
    """One event of the profiler, to be written: a row of the CSV file EVENTS and a step in the JSON file TRACES.

    Texts that were not kept are None.
    """

    at: int  # nanoseconds since 1970
    kind: str  # LLM_START, TOOL_END, ...
    id: str
    name: str = ""  # name of the model or the tool
    tokens: Mapping[str, int] = MappingProxyType({})
    began: int | None = None  # start of the call that ends, nanoseconds since 1970
    given: object = None  # input
    made: object = None  # output
    payload: object = None  # the whole output
    metadata: Json | None = None
    chunk: str | None = None


NOTHING_KEPT = RolloutMessages()


def events_of(place: RolloutPlace, sent: RolloutMessages = NOTHING_KEPT) -> list[ProfilerEvent]:
    """Returns the events of a rollout by time, or none if its times are unknown. `sent` are its messages."""
    rollout, calendar = place.rollout, place.origin.calendar
    start, end = (calendar.epoch_ns(rollout.session, stamp) for stamp in (rollout.started_ns, rollout.ended_ns))
    if start is None or end is None:
        return []
    whole = _id(place, "workflow")
    events = [
        ProfilerEvent(start, "WORKFLOW_START", whole, WORKFLOW, given=question(rollout)),
        ProfilerEvent(end, "WORKFLOW_END", whole, WORKFLOW, made=rollout.answer),
    ]
    for attempt in rollout.attempts:
        for number, call in enumerate(attempt.calls):
            events += _call_events(place, attempt, number, call, sent.calls.get((attempt.attempt, number), CallMessages()))
    for number, (tool, result) in enumerate(zip_longest(rollout.tool_calls, sent.results)):
        events += _tool_events(place, number, tool, result)
    return sorted(events, key=lambda event: event.at)


def _call_events(place: RolloutPlace, attempt: Attempt, number: int, call: LLMCall, sent: CallMessages) -> Iterator[ProfilerEvent]:
    """Yields the events of an LLM call. A failed call has no LLM_END, as in the toolkit."""
    calendar, id = place.origin.calendar, _id(place, "call", attempt.attempt, number)
    begun, ended = (calendar.epoch_ns(attempt.session, stamp) for stamp in (called_ns(call), call.ended_ns))
    if begun is None or ended is None:
        return
    prompt = None if sent.prompt is None else [*map(langchain_message, sent.prompt)]
    inputs = None if prompt is None else {"chat_inputs": prompt, "tools_schema": [*map(tool_schema, sent.tools)]}
    yield ProfilerEvent(begun, "LLM_START", id, call.model, given=prompt, metadata=inputs)
    shift = begun - called_ns(call)
    for chunk in call.chunks:
        yield ProfilerEvent(chunk.at_ns + shift, "LLM_NEW_TOKEN", id, chunk=TOKEN if chunk.kind in OUTPUT_KINDS else "")
    if call.error_kind is None:
        counts = {"prompt_tokens": call.prompt_tokens or 0, "completion_tokens": call.completion_tokens or 0}
        tokens = {**counts, "total_tokens": sum(counts.values()), "cached_tokens": call.cached_tokens or 0}
        given = prompt[-1]["content"] if prompt else ""  # The toolkit writes an unknown input like this, and its evaluators refuse None.
        yield ProfilerEvent(ended, "LLM_END", id, call.model, tokens, begun, given, **_answer(call, sent.reply))


def _answer(call: LLMCall, reply: Json | None) -> Json:
    """Returns the fields of an event that have the model's answer."""
    if reply is None:
        return {}
    message = langchain_message(reply)
    whole = generation(message, call)
    return {"made": output_text(message), "payload": whole, "metadata": {"chat_responses": [whole], "tool_outputs": []}}


def _tool_events(place: RolloutPlace, number: int, tool: ToolCall, result: object) -> Iterator[ProfilerEvent]:
    calendar, id = place.origin.calendar, _id(place, "tool", number)
    begun, done = (calendar.epoch_ns(place.rollout.session, stamp) for stamp in (tool.started_ns, tool.ended_ns))
    if begun is None:
        return
    yield ProfilerEvent(begun, "TOOL_START", id, tool.name, given=tool.arguments, metadata={"tool_inputs": tool.arguments})
    if done is not None:
        outputs = None if result is None else {"tool_outputs": result}
        yield ProfilerEvent(
            done, "TOOL_END", id, tool.name, began=begun, given=tool.arguments, made=result, payload=result, metadata=outputs
        )


def _id(place: RolloutPlace, *parts: object) -> str:
    """Returns the UUID of a part of a rollout, such as a call. It is the same in every export."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, "/".join(map(str, (place.origin.run, *place.rollout.key, *parts)))))


def seconds(at: int) -> str:
    """Converts nanoseconds to a text with seconds, without rounding."""
    return f"{at // 10**9}.{at % 10**9:09}"


def row_of(event: ProfilerEvent, number: int) -> list[object]:
    """Converts a profiler event to a row of the CSV file EVENTS. `number` is the position of its rollout in the job."""
    whole = event.kind.startswith("LLM_")
    values: Json = {
        "event_type": event.kind,
        "event_timestamp": seconds(event.at),
        "example_number": number,
        **{name: event.tokens.get(name, 0) for name in ("prompt_tokens", "completion_tokens", "total_tokens")},
        "llm_text_output": str(event.made) if whole and event.made is not None else None,
        "llm_new_token": event.chunk,
        "llm_name": event.name if whole else None,
        "tool_name": event.name if event.kind.startswith("TOOL_") else None,
        "function_name": WORKFLOW,
        "UUID": event.id,
        "framework": FRAMEWORK,
    }
    return [values.get(name) for name in EVENT_COLUMNS]


def step_of(event: ProfilerEvent) -> Json:
    """Converts an event to a step of the JSON file TRACES."""
    usage = {"token_usage": {**dict(event.tokens), "reasoning_tokens": 0}, "num_llm_calls": 1, "seconds_between_calls": 0}
    return {
        "parent_id": "root",
        "function_ancestry": {"function_id": "root", "function_name": WORKFLOW, "parent_id": None, "parent_name": None},
        "payload": {
            "event_type": event.kind,
            "event_timestamp": float(seconds(event.at)),  # the number that a reader of the CSV gets
            "span_event_timestamp": None if event.began is None else float(seconds(event.began)),
            "framework": FRAMEWORK,
            "name": event.name or None,
            "tags": None,
            "metadata": event.metadata,
            "data": {"input": event.given, "output": event.made, "chunk": event.chunk, "payload": event.payload},
            "usage_info": usage if event.tokens else None,
            "UUID": event.id,
        },
    }
