"""Reads the profiler events of the NeMo Agent Toolkit as LLM and tool calls, and has the names of its files and columns.

An example is the execution of one entry of the data set, like a rollout. The profiler numbers examples by position in the data set.
"""

from __future__ import annotations

import ast
import csv
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports.files import dig, epoch_ns, json_items, members
from pytest_agentbench.metrics.other_tools.nat import WHOLE
from pytest_agentbench.records import Chunk, Json, LLMCall, ToolCall

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
    """Yields (UUID, arguments) of every tool call in all_requests_profiler_traces.json. Keeps the trace of one entry of
    the data set in memory at a time.
    """
    for request in json_items(file):
        if not isinstance(request, dict):
            raise ConfigError(f"{file}: must be an array of objects")
        for step in members(request, "intermediate_steps", file):
            if dig(step, "payload", "event_type") == "TOOL_START":
                yield str(dig(step, "payload", "UUID")), dig(step, "payload", "data", "input")
