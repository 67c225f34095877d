"""The profiler of the NeMo Agent Toolkit as a run's calls and tools would have fed it: a CSV of events, and their traces."""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO, NamedTuple

from pytest_agentbench.exports.csv_files import CsvFile
from pytest_agentbench.exports.nat_schema import EVENT_COLUMNS, EVENTS, FRAMEWORK, TRACES
from pytest_agentbench.metrics.other_tools.common import called_ns
from pytest_agentbench.metrics.places import RolloutPlace
from pytest_agentbench.records import OUTPUT_KINDS, Attempt, Json, LLMCall

TOKEN = "…"  # the text of an event with output: what it was nobody kept
WORKFLOW = "<workflow>"


class ProfilerEvent(NamedTuple):
    """One event of the profiler."""

    at: int  # nanoseconds since 1970
    kind: str  # LLM_START, TOOL_END, ...
    id: str
    name: str = ""  # of the model or the tool
    tokens: Mapping[str, int] = MappingProxyType({})
    given: object = None
    made: object = None
    chunk: str | None = None


def write_profile(examples: Iterator[tuple[int, RolloutPlace]], job: Path, *, exact: bool) -> Iterator[tuple[int, list[ProfilerEvent]]]:
    """Writes EVENTS and TRACES of rollouts, each with its position in the data set; gives the events of each, by time.

    TRACES has them in the order of their positions, as the toolkit has it. They end in another one, so a file holds what is to be ordered.
    `exact` is that of the CsvFile.
    """
    places: dict[int, tuple[int, int]] = {}  # position -> where its trace begins and how long it is
    with tempfile.TemporaryFile() as unordered:
        with CsvFile(job / EVENTS, EVENT_COLUMNS, exact=exact) as table:
            for number, place in examples:
                events = sorted(events_of(place), key=lambda event: event.at)
                for event in events:
                    table.write(_row(event, number))
                request = {"request_number": number, "intermediate_steps": [*map(_step, events)]}
                places[number] = unordered.tell(), unordered.write(json.dumps(request, ensure_ascii=False, default=str).encode())
                yield number, events
        _write_traces(unordered, [place for _, place in sorted(places.items())], job / TRACES)


def _write_traces(unordered: IO[bytes], places: Sequence[tuple[int, int]], file: Path) -> None:
    """A JSON array of the parts of a file."""
    with file.open("wb") as traces:
        traces.write(b"[")
        for number, (start, length) in enumerate(places):
            unordered.seek(start)
            traces.write((b",\n" if number else b"\n") + unordered.read(length))
        traces.write(b"\n]\n")


def events_of(place: RolloutPlace) -> Iterator[ProfilerEvent]:
    """What happened in a rollout whose times are known, unordered."""
    rollout, calendar = place.rollout, place.origin.calendar
    start, end = (calendar.epoch_ns(rollout.session, stamp) for stamp in (rollout.started_ns, rollout.ended_ns))
    if start is None or end is None:
        return
    whole = _id(place, "workflow")
    yield ProfilerEvent(start, "WORKFLOW_START", whole, WORKFLOW)
    yield ProfilerEvent(end, "WORKFLOW_END", whole, WORKFLOW, made=rollout.answer)
    texts = _texts(place)
    for attempt in rollout.attempts:
        for number, call in enumerate(attempt.calls):
            yield from _call(place, attempt, number, call, texts.get(number) if attempt.attempt == rollout.attempt else None)
    for number, tool in enumerate(rollout.tool_calls):
        begun, done = (calendar.epoch_ns(rollout.session, stamp) for stamp in (tool.started_ns, tool.ended_ns))
        if begun is not None:
            yield ProfilerEvent(begun, "TOOL_START", _id(place, "tool", number), tool.name, given=tool.arguments)
        if begun is not None and done is not None:
            yield ProfilerEvent(done, "TOOL_END", _id(place, "tool", number), tool.name)


def _call(place: RolloutPlace, attempt: Attempt, number: int, call: LLMCall, text: str | None) -> Iterator[ProfilerEvent]:
    """The events of a call. One that failed has no end, as the toolkit would have it."""
    calendar, id = place.origin.calendar, _id(place, "call", attempt.attempt, number)
    begun, ended = (calendar.epoch_ns(attempt.session, stamp) for stamp in (called_ns(call), call.ended_ns))
    if begun is None or ended is None:
        return
    yield ProfilerEvent(begun, "LLM_START", id, call.model)
    shift = begun - called_ns(call)
    for chunk in call.chunks:
        yield ProfilerEvent(chunk.at_ns + shift, "LLM_NEW_TOKEN", id, chunk=TOKEN if chunk.kind in OUTPUT_KINDS else "")
    if call.error_kind is None:
        prompt, completion = call.prompt_tokens or 0, call.completion_tokens or 0
        tokens = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        yield ProfilerEvent(ended, "LLM_END", id, call.model, {**tokens, "cached_tokens": call.cached_tokens or 0}, made=text)


def _texts(place: RolloutPlace) -> dict[int, str]:
    """Call -> what the model said, where the transcript has a message of it for each call that went well."""
    good = [number for number, call in enumerate(place.rollout.calls) if call.error_kind is None]
    answers = [str(message.get("content") or "") for message in place.rollout.messages if message.get("role") == "assistant"]
    return dict(zip(good, answers, strict=True)) if len(good) == len(answers) else {}


def _id(place: RolloutPlace, *parts: object) -> str:
    """The same for the same thing, whenever it is exported."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, "/".join(map(str, (place.origin.run, *place.rollout.key, *parts)))))


def seconds(at: int) -> str:
    """Nanoseconds as seconds, without a loss."""
    return f"{at // 10**9}.{at % 10**9:09}"


def _row(event: ProfilerEvent, number: int) -> list[object]:
    """The columns of EVENTS."""
    whole = event.kind.startswith("LLM_")
    values: Json = {
        "event_type": event.kind,
        "event_timestamp": seconds(event.at),
        "example_number": number,
        **{name: event.tokens.get(name, 0) for name in ("prompt_tokens", "completion_tokens", "total_tokens")},
        "llm_text_output": event.made if whole else None,
        "llm_new_token": event.chunk,
        "llm_name": event.name if whole else None,
        "tool_name": event.name if event.kind.startswith("TOOL_") else None,
        "function_name": WORKFLOW,
        "UUID": event.id,
        "framework": FRAMEWORK,
    }
    return [values.get(name) for name in EVENT_COLUMNS]


def _step(event: ProfilerEvent) -> Json:
    """A step of TRACES."""
    usage = {"token_usage": {**dict(event.tokens), "reasoning_tokens": 0}, "num_llm_calls": 1, "seconds_between_calls": 0}
    return {
        "parent_id": "root",
        "function_ancestry": {"function_id": "root", "function_name": WORKFLOW, "parent_id": None, "parent_name": None},
        "payload": {
            "event_type": event.kind,
            "event_timestamp": float(seconds(event.at)),  # the number that a reader of the CSV gets
            "span_event_timestamp": None,
            "framework": FRAMEWORK,
            "name": event.name or None,
            "tags": None,
            "metadata": None,
            "data": {"input": event.given, "output": event.made, "chunk": event.chunk, "payload": None},
            "usage_info": usage if event.tokens else None,
            "UUID": event.id,
        },
    }
