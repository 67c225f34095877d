"""Reads the profiler events of the NeMo Agent Toolkit as LLM and tool calls, and writes a run's calls as the profiler's files.

An example is the execution of one entry of the data set, like a rollout. The profiler numbers examples by position in the data set.
"""

from __future__ import annotations

import ast
import csv
import json
import sys
import tempfile
import uuid
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import IO, NamedTuple

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports.csv_files import CsvFile
from pytest_agentbench.exports.files import dig, epoch_ns, json_items, members
from pytest_agentbench.metrics.columns import RolloutPlace
from pytest_agentbench.metrics.other_tools.measures import called_ns
from pytest_agentbench.metrics.other_tools.nat import WHOLE
from pytest_agentbench.records import OUTPUT_KINDS, Attempt, Chunk, Json, LLMCall, ToolCall

#: Files of a job.
ANSWERS, EVENTS, TRACES = "workflow_output.json", "standardized_data_all.csv", "all_requests_profiler_traces.json"
CONFIG, CONFIG_GIVEN, METADATA = "config_effective.yml", "config_original.yml", "config_metadata.json"
CALLS, GAPS = "tokens_per_second_analysis.csv", "inter_token_latency_distribution.csv"
OPTIMIZATION, REPORT = "inference_optimization.json", "workflow_profiling_report.txt"

EVALUATOR_ENDING = "_output.json"  # suffix of an evaluator's file, after its name
NOT_EVALUATORS = frozenset({ANSWERS, "workflow_output_atif.json"})
MAIN = "tool_selection_quality"  # name of the evaluator of tool calls
FRAMEWORK = "langchain"

#: Columns of EVENTS.
EVENT_COLUMNS = (
    *("event_type", "event_timestamp", "example_number", "prompt_tokens", "completion_tokens", "total_tokens", "llm_text_input"),
    *("llm_text_output", "llm_new_token", "llm_name", "tool_name", "function_name", "function_id", "parent_function_name"),
    *("parent_function_id", "UUID", "framework"),
)

#: Columns of CALLS and of GAPS.
CALL_COLUMNS = (
    *("example_num", "llm_call_id", "llm_name", "start_time", "end_time", "duration_sec", "num_tokens", "tokens_per_sec"),
    *("time_to_first_token_sec", "mean_itl_sec", "median_itl_sec"),
)
GAP_COLUMNS = ("itl_sec",)

#: Columns of a benchmark.
BENCHMARK_COLUMNS = (
    *("concurrency", "total_llm_calls", "total_tokens", "sum_of_durations_sec", "wall_clock_time_sec"),
    *(f"ttft_{name}_ms" for name in WHOLE),
    *(f"itl_{name}_ms" for name in WHOLE),
    *(f"itl_percall_{name}_ms" for name in WHOLE[:4]),
    *(f"per_request_throughput_{name}_toks" for name in WHOLE),
    *("aggregate_throughput_toks", "aggregate_speedup"),
)


NEEDED = ("event_type", "event_timestamp", "example_number", "UUID")
OPTIONAL = ("prompt_tokens", "completion_tokens", "llm_new_token", "llm_name", "tool_name")
EMPTY = frozenset({"", "None"})  # values of llm_new_token in events without text


@dataclass
class CallEvents:
    """An LLM call, put together from the profiler's events about it."""

    started: int | None = None  # nanoseconds since 1970, like all times here
    ended: int | None = None
    model: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    tokens: array[int] = field(default_factory=lambda: array("q"))
    with_text: bytearray = field(default_factory=bytearray)


@dataclass
class ToolEvents:
    """A tool call, put together from the profiler's events about it."""

    name: str
    started: int
    ended: int | None = None


@dataclass
class Example:
    """The LLM and tool calls of one example, put together from the profiler's events."""

    llm_events: dict[str, CallEvents] = field(default_factory=dict)  # UUID -> LLM call
    tool_events: dict[str, ToolEvents] = field(default_factory=dict)
    first: int = sys.maxsize
    last: int = 0

    @property
    def tools(self) -> list[str]:
        """Names of the tools, in the order in which they were started."""
        return [each.name for each in sorted(self.tool_events.values(), key=lambda each: each.started)]

    def calls(self) -> tuple[LLMCall, ...]:
        started = [(each.started, each) for each in self.llm_events.values() if each.started is not None]
        return tuple(_call(each, start) for start, each in sorted(started, key=lambda pair: pair[0]))

    def tool_calls(self, inputs: dict[str, object]) -> tuple[ToolCall, ...]:
        """Returns the tool calls in order of time. `inputs` is UUID of a call -> its arguments in the traces (`tool_inputs`)."""
        turns = sorted(each.started for each in self.llm_events.values() if each.started is not None)
        calls = sorted(self.tool_events.items(), key=lambda pair: pair[1].started)
        return tuple(_tool_call(each, sum(turn <= each.started for turn in turns), inputs.get(uuid)) for uuid, each in calls)


def read_events(file: Path) -> dict[int, Example]:
    """Reads the profiler's CSV file. Returns position in the data set -> example. Raises ConfigError with the file and line of an error."""
    csv.field_size_limit(sys.maxsize)  # prompts are fields, and have no maximum length
    examples: dict[int, Example] = {}
    with file.open(encoding="utf-8-sig", newline="") as lines:
        rows = csv.reader(lines)
        try:
            places = _places(next(rows, []), file)
            for row in rows:
                _add(examples, {name: row[place] for name, place in places.items()})
        except (ValueError, OverflowError, IndexError, csv.Error) as error:
            raise ConfigError(f"{file}:{rows.line_num}: {_why(error)}") from error
    return examples


def _why(error: Exception) -> str:
    return "fewer columns than the header has" if isinstance(error, IndexError) else str(error)


def _places(header: list[str], file: Path) -> dict[str, int]:
    if missing := [name for name in NEEDED if name not in header]:
        raise ConfigError(f"{file}: no column {missing[0]!r}; the file must be the profiler's standardized_data_all.csv")
    return {name: header.index(name) for name in (*NEEDED, *OPTIONAL) if name in header}


def _add(examples: dict[int, Example], row: dict[str, str]) -> None:
    kind, at, uuid = row["event_type"], epoch_ns(row["event_timestamp"]), row["UUID"]
    example = examples.setdefault(int(float(row["example_number"])), Example())
    example.first, example.last = min(example.first, at), max(example.last, at)
    if kind.startswith(("LLM_", "TOOL_")) and not uuid:
        raise ValueError(f"an event {kind} must have a UUID, which says to which call it belongs")
    if kind.startswith("LLM_"):
        _add_llm(example.llm_events.setdefault(uuid, CallEvents()), kind, at, row)
    elif kind == "TOOL_START":
        example.tool_events[uuid] = ToolEvents(row.get("tool_name", ""), at)
    elif kind == "TOOL_END" and uuid in example.tool_events:
        example.tool_events[uuid].ended = at


def _add_llm(call: CallEvents, kind: str, at: int, row: dict[str, str]) -> None:
    match kind:
        case "LLM_START":
            call.started, call.model = at, row.get("llm_name", "")
        case "LLM_END":
            call.ended = at
            call.prompt_tokens, call.completion_tokens = _count(row, "prompt_tokens"), _count(row, "completion_tokens")
        case "LLM_NEW_TOKEN":
            call.tokens.append(at)
            call.with_text.append(row.get("llm_new_token", "unknown") not in EMPTY)


def _count(row: dict[str, str], name: str) -> int | None:
    """Returns a count of tokens in a row. Returns None for 0, which the toolkit writes if the server reported no count."""
    return int(float(row.get(name) or 0)) or None


def _call(call: CallEvents, started: int) -> LLMCall:
    events = sorted(zip(call.tokens, call.with_text, strict=True))
    ended = max([started, *call.tokens]) if call.ended is None else call.ended
    return LLMCall(
        received_ns=started,
        sent_ns=started,
        ended_ns=ended,
        chunks=tuple(Chunk(at, "content" if text else "other") for at, text in events),
        streamed=bool(events),
        model=call.model,
        prompt_tokens=call.prompt_tokens,
        completion_tokens=call.completion_tokens,
        token_source="usage" if call.completion_tokens else "chunks" if events else "none",
        error_kind="incomplete" if call.ended is None else None,
        error="the toolkit recorded no LLM_END" if call.ended is None else "",
    )


def _tool_call(call: ToolEvents, turn: int, text: object) -> ToolCall:
    arguments = parsed_arguments(text)
    raw = str(text) if arguments is None and text is not None else None
    return ToolCall(call.name, arguments or {}, max(1, turn), raw=raw, started_ns=call.started, ended_ns=call.ended)


def parsed_arguments(arguments: object) -> Json | None:
    """Returns the arguments of a tool call, or None if they cannot be parsed.

    They are an object or, as the toolkit writes them, the text of a Python literal. Stubs of tools wrap them in `input_params`.
    """
    if isinstance(arguments, str):
        try:
            arguments = ast.literal_eval(arguments)
        except (ValueError, SyntaxError, MemoryError, RecursionError):  # a model can write anything
            return None
    if not isinstance(arguments, dict):
        return None
    inner = arguments.get("input_params", arguments)
    return inner if isinstance(inner, dict) else arguments


def tool_inputs(file: Path) -> Iterator[tuple[str, object]]:
    """Yields (UUID, arguments) of every tool call in all_requests_profiler_traces.json. Keeps one request in memory at a time."""
    for request in json_items(file):
        if not isinstance(request, dict):
            raise ConfigError(f"{file}: must be an array of objects")
        for step in members(request, "intermediate_steps", file):
            if dig(step, "payload", "event_type") == "TOOL_START":
                yield str(dig(step, "payload", "UUID")), dig(step, "payload", "data", "input")


TOKEN = "…"  # the text of an event with output, because the real text is not recorded
WORKFLOW = "<workflow>"


class ProfilerEvent(NamedTuple):
    """One event of the profiler, to be written: a row of the CSV file EVENTS and a step in the JSON file TRACES."""

    at: int  # nanoseconds since 1970
    kind: str  # LLM_START, TOOL_END, ...
    id: str
    name: str = ""  # name of the model or the tool
    tokens: Mapping[str, int] = MappingProxyType({})
    given: object = None  # input
    made: object = None  # output
    chunk: str | None = None


def write_profile(examples: Iterator[tuple[int, RolloutPlace]], job: Path, *, exact: bool) -> Iterator[tuple[int, list[ProfilerEvent]]]:
    """Writes the files EVENTS (CSV) and TRACES (JSON) of a job. Yields each rollout's position in the data set, and its events by time.

    `examples` are positions and rollouts. TRACES is sorted by position, as in the toolkit. The rollouts come in another order, so a
    temporary file holds the traces until the end. `exact`: texts in EVENTS that spreadsheets treat as formulas are written unchanged.
    """
    places: dict[int, tuple[int, int]] = {}  # position -> offset and length of its trace, bytes
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
    """Writes a JSON array to a file. Its elements are copied from the file `unordered`: `places` has (offset, length) of each, in bytes."""
    with file.open("wb") as traces:
        traces.write(b"[")
        for number, (start, length) in enumerate(places):
            unordered.seek(start)
            traces.write((b",\n" if number else b"\n") + unordered.read(length))
        traces.write(b"\n]\n")


def events_of(place: RolloutPlace) -> Iterator[ProfilerEvent]:
    """Yields the events of a rollout, unordered. Yields none if its times are unknown."""
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
            yield from _call_events(place, attempt, number, call, texts.get(number) if attempt.attempt == rollout.attempt else None)
    for number, tool in enumerate(rollout.tool_calls):
        begun, done = (calendar.epoch_ns(rollout.session, stamp) for stamp in (tool.started_ns, tool.ended_ns))
        if begun is not None:
            yield ProfilerEvent(begun, "TOOL_START", _id(place, "tool", number), tool.name, given=tool.arguments)
        if begun is not None and done is not None:
            yield ProfilerEvent(done, "TOOL_END", _id(place, "tool", number), tool.name)


def _call_events(place: RolloutPlace, attempt: Attempt, number: int, call: LLMCall, text: str | None) -> Iterator[ProfilerEvent]:
    """Yields the events of an LLM call. A failed call has no LLM_END, as in the toolkit."""
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
    """Returns number of a call -> text that the model answered. Empty unless each successful call has one assistant message."""
    good = [number for number, call in enumerate(place.rollout.calls) if call.error_kind is None]
    answers = [str(message.get("content") or "") for message in place.rollout.messages if message.get("role") == "assistant"]
    return dict(zip(good, answers, strict=True)) if len(good) == len(answers) else {}


def _id(place: RolloutPlace, *parts: object) -> str:
    """Returns the UUID of a part of a rollout, such as a call. It is the same in every export."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, "/".join(map(str, (place.origin.run, *place.rollout.key, *parts)))))


def seconds(at: int) -> str:
    """Converts nanoseconds to a text with seconds, without rounding."""
    return f"{at // 10**9}.{at % 10**9:09}"


def _row(event: ProfilerEvent, number: int) -> list[object]:
    """Converts an event of example `number` to a row of the CSV file EVENTS."""
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
    """Converts an event to a step of the JSON file TRACES."""
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
