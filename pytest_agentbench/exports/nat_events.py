"""The NeMo Agent Toolkit's profiler: `standardized_data_all.csv`, an event a row, as calls and tools of each example.

The CSV is read once, row by row; of a token eight bytes for its time and one for whether it had text are kept. Events belong together
by UUID, not by what comes next in time.
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
from pytest_agentbench.records import Chunk, Json, LLMCall, ToolCall

NEEDED = ("event_type", "event_timestamp", "example_number", "UUID")
OPTIONAL = ("prompt_tokens", "completion_tokens", "llm_new_token", "llm_name", "tool_name")
EMPTY = frozenset({"", "None"})  # what the text of a token event without text looks like


@dataclass
class CallEvents:
    """The events of one LLM call."""

    started: int | None = None  # nanoseconds since 1970, as all here
    ended: int | None = None
    model: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    tokens: array[int] = field(default_factory=lambda: array("q"))
    with_text: bytearray = field(default_factory=bytearray)


@dataclass
class ToolEvents:
    """The events of one tool call."""

    name: str
    started: int
    ended: int | None = None


@dataclass
class Example:
    """The events of one example."""

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
        """The tools used; `inputs` are those of the traces, by UUID."""
        turns = sorted(each.started for each in self.llm_events.values() if each.started is not None)
        calls = sorted(self.tool_events.items(), key=lambda pair: pair[1].started)
        return tuple(_tool_call(each, sum(turn <= each.started for turn in turns), inputs.get(uuid)) for uuid, each in calls)


def read_events(file: Path) -> dict[int, Example]:
    """Position in the data set -> its events; raises ConfigError with file and line of a fault."""
    csv.field_size_limit(sys.maxsize)  # prompts are fields, and as long as they like
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
        raise ConfigError(f"{file}: no column {missing[0]!r}; is it the profiler's standardized_data_all.csv?")
    return {name: header.index(name) for name in (*NEEDED, *OPTIONAL) if name in header}


def _add(examples: dict[int, Example], row: dict[str, str]) -> None:
    kind, at, uuid = row["event_type"], epoch_ns(row["event_timestamp"]), row["UUID"]
    example = examples.setdefault(int(float(row["example_number"])), Example())
    example.first, example.last = min(example.first, at), max(example.last, at)
    if kind.startswith(("LLM_", "TOOL_")) and not uuid:
        raise ValueError(f"an event {kind} has no UUID, so nobody knows which call it belongs to")
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
    """A count of tokens. The toolkit writes 0 where the server did not say."""
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
    arguments = understood(text)
    raw = str(text) if arguments is None and text is not None else None
    return ToolCall(call.name, arguments or {}, max(1, turn), raw=raw, started_ns=call.started, ended_ns=call.ended)


def understood(arguments: object) -> Json | None:
    """The arguments of a tool: the toolkit writes the text that Python makes of them, and stubs wrap them in `input_params`."""
    if isinstance(arguments, str):
        try:
            arguments = ast.literal_eval(arguments)
        except (ValueError, SyntaxError, MemoryError, RecursionError):  # whatever a model may write
            return None
    if not isinstance(arguments, dict):
        return None
    inner = arguments.get("input_params", arguments)
    return inner if isinstance(inner, dict) else arguments


def tool_inputs(file: Path) -> Iterator[tuple[str, object]]:
    """(UUID, what the tool was given) of every TOOL_START in `all_requests_profiler_traces.json`, one request in memory at a time."""
    for request in json_items(file):
        if not isinstance(request, dict):
            raise ConfigError(f"{file}: should be an array of objects")
        for step in members(request, "intermediate_steps", file):
            if dig(step, "payload", "event_type") == "TOOL_START":
                yield str(dig(step, "payload", "UUID")), dig(step, "payload", "data", "input")
