"""Writes `trace.json` for ui.perfetto.dev (Chrome trace events): attempts, calls, tools, and metrics of services and GPUs over time.

There are as many slots as rollouts were in flight. A slot is a thread of the trace. It contains the slices of attempts, and within these
the slices of calls, tools and programs. Slices of a thread must be nested, so slices that overlap within an attempt get additional
threads below the slot.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from pytest_agentbench.exports.files import ChosenRuns
from pytest_agentbench.metrics.columns import Origin, RolloutPlace
from pytest_agentbench.records import Attempt, Json, LLMCall, RolloutKey
from pytest_agentbench.tables import places
from pytest_agentbench.tables.run_tables import rows_of_samples

FILE = "trace.json"
SUMS = ("_bucket", "_sum", "_count", "_total", "_created")  # suffixes of series that only grow, and would hide all others


class TraceSlice(NamedTuple):
    """A named period on the timeline, such as an attempt or a call. Times are in nanoseconds since 1970."""

    start: int
    end: int
    name: str
    category: str  # attempt | call | a role | tool | program
    facts: Json
    parts: Sequence[tuple[str, int, int]] = ()  # consecutive phases: name, start, end


@dataclass
class Thread:
    """A thread of the trace while slices are assigned to it. `open` has those that have not ended yet."""

    open: list[TraceSlice] = field(default_factory=list)

    def takes(self, slice: TraceSlice) -> bool:
        """Adds a slice if all others have ended when it begins, or if it lies within an open attempt or program. Returns whether it did."""
        while self.open and self.open[-1].end <= slice.start:
            self.open.pop()
        inside = self.open[-1] if self.open else None
        if inside and (inside.category not in ("attempt", "program") or slice.end > inside.end):
            return False
        self.open.append(slice)
        return True


def write(chosen: ChosenRuns, directory: Path) -> None:
    """Writes one trace file for all runs. Each run is a process of the trace, whose times begin at 0."""
    with (directory / FILE).open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[')
        separator = "\n"
        for process, origin in enumerate(chosen.origins, 1):
            for event in _events(origin, process):
                file.write(separator + json.dumps(event, ensure_ascii=False, allow_nan=False))
                separator = ",\n"
        file.write("\n]}\n")


def _events(origin: Origin, process: int) -> Iterator[Json]:
    spans = {key: slice for place in places(origin) for key, slice in _attempts(place)}
    starts = [slice.start for slice in spans.values()]
    starts += [math.floor(row.at * 1e9) for row in rows_of_samples(origin.run, origin.directory)]
    began, slots = min(starts, default=0), _slots(spans)
    yield {"ph": "M", "pid": process, "tid": 0, "name": "process_name", "args": {"name": origin.run}}
    threads: dict[tuple[int, int], int] = {}
    for place in places(origin):
        for key, attempt in _attempts(place):
            for number, slice in _side_by_side(attempt, _within(place, key[1])):
                thread = threads.setdefault((slots[key], number), len(threads) + 1)
                yield from ({**event, "pid": process, "tid": thread} for event in _complete(slice, began))
    for (slot, number), thread in threads.items():
        name = f"slot {slot + 1}{f', beside it {number}' if number else ''}"
        yield {"ph": "M", "pid": process, "tid": thread, "name": "thread_name", "args": {"name": name}}
        yield {"ph": "M", "pid": process, "tid": thread, "name": "thread_sort_index", "args": {"sort_index": slot * 1000 + number}}
    yield from _counters(origin, process, began)


def _attempts(place: RolloutPlace) -> Iterator[tuple[tuple[RolloutKey, int], TraceSlice]]:
    """Yields (rollout key and attempt number, slice) for each attempt of a rollout whose times are known."""
    for attempt in place.rollout.attempts:
        start, end = (place.origin.calendar.epoch_ns(attempt.session, stamp) for stamp in (attempt.started_ns, attempt.ended_ns))
        if start is not None and end is not None:
            facts = {"status": attempt.status, "reason": attempt.reason, "attempt": attempt.attempt}
            scores = {name: float(score) for name, score in place.rollout.scores.items()}
            yield (place.rollout.key, attempt.attempt), TraceSlice(start, end, str(place.rollout.key), "attempt", {**facts, **scores})


def _slots(spans: dict[tuple[RolloutKey, int], TraceSlice]) -> dict[tuple[RolloutKey, int], int]:
    """Returns attempt -> number of its slot (a row of the timeline). Each attempt gets the first slot that is free when it begins."""
    slots: dict[tuple[RolloutKey, int], int] = {}
    free: list[int] = []
    busy: list[tuple[int, int]] = []  # end, slot
    for key, span in sorted(spans.items(), key=lambda item: (item[1].start, item[1].end)):
        while busy and busy[0][0] <= span.start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        slots[key] = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (span.end, slots[key]))
    return slots


def _within(place: RolloutPlace, number: int) -> Iterator[TraceSlice]:
    """Yields slices for the calls, tools and programs of an attempt whose times are known.

    Tools and programs are recorded only for the last attempt.
    """
    rollout = place.rollout
    attempt = next(each for each in rollout.attempts if each.attempt == number)
    for call in (*attempt.calls, *attempt.other_calls):
        yield from _call(place, attempt, call, call.role or "call")
    if number != rollout.attempt:
        return
    for tool in rollout.tool_calls:
        yield from _slice(place, attempt, (tool.started_ns, tool.ended_ns), tool.name, "tool", {"arguments": tool.arguments})
    for program in rollout.programs:
        facts = {"exit_code": program.exit_code, "cpu_s": program.cpu_s, "peak_mib": program.peak_mib}
        yield from _slice(place, attempt, (program.started_ns, program.ended_ns), "program", "program", facts)


def _call(place: RolloutPlace, attempt: Attempt, call: LLMCall, category: str) -> Iterator[TraceSlice]:
    """Yields the slice of a call, from the time when the tap (our proxy) got it. Its parts are client queue, first token and decoding."""
    facts = {
        "error_kind": call.error_kind,
        "finish_reason": call.finish_reason,
        "prompt_tokens": call.prompt_tokens,
        "cached_tokens": call.cached_tokens,
        "completion_tokens": call.completion_tokens,
    }
    first = call.output[0].at_ns if call.output else call.ended_ns
    bounds = [] if call.sent_ns is None else [call.received_ns, call.sent_ns, max(first, call.sent_ns), call.ended_ns]
    for slice in _slice(place, attempt, (call.received_ns, call.ended_ns), call.model or category, category, facts):
        shift = slice.start - call.received_ns
        parts = zip(("client queue", "first token", "decoding"), pairwise(bounds), strict=False)
        yield slice._replace(parts=[(name, start + shift, end + shift) for name, (start, end) in parts if end > start])


def _slice(
    place: RolloutPlace, attempt: Attempt, stamps: tuple[int | None, int | None], name: str, category: str, facts: Json
) -> Iterator[TraceSlice]:
    """Yields one slice between two timestamps on the clock of an attempt's session, or none if their time since 1970 is unknown."""
    start, end = (place.origin.calendar.epoch_ns(attempt.session, stamp) for stamp in stamps)
    if start is not None and end is not None:
        yield TraceSlice(start, max(start, end), name, category, {name: value for name, value in facts.items() if value is not None})


def _side_by_side(whole: TraceSlice, inner: Iterator[TraceSlice]) -> Iterator[tuple[int, TraceSlice]]:
    """Assigns the slices of an attempt to threads so that those of a thread are nested. Yields (number of the thread, slice).

    Thread 0 contains the attempt itself.
    """
    threads = [Thread()]
    for slice in (whole, *sorted(inner, key=lambda each: (each.start, -each.end))):
        number = next((number for number, thread in enumerate(threads) if thread.takes(slice)), len(threads))
        if number == len(threads):
            threads.append(Thread([slice]))
        yield number, slice


def _complete(slice: TraceSlice, began: int) -> Iterator[Json]:
    """Converts a slice and its parts to complete events (`X`) of the trace. Their times are microseconds after `began`."""
    times = {"ts": (slice.start - began) / 1e3, "dur": (slice.end - slice.start) / 1e3}
    yield {"ph": "X", "name": slice.name, "cat": slice.category, **times, "args": slice.facts}
    for name, start, end in slice.parts:
        yield {"ph": "X", "name": name, "cat": slice.category, "ts": (start - began) / 1e3, "dur": (end - start) / 1e3, "args": {}}


def _counters(origin: Origin, process: int, began: int) -> Iterator[Json]:
    """Yields counter events (`C`) of the trace for the samples of services and GPUs. Series that only grow are left out."""
    for row in rows_of_samples(origin.run, origin.directory):
        if row.value is not None and math.isfinite(row.value) and not row.series.endswith(SUMS):
            name = f"{row.service} {row.replica} {row.series} {row.labels}".strip()
            at = (math.floor(row.at * 1e9) - began) / 1e3
            yield {"ph": "C", "pid": process, "tid": 0, "name": name, "ts": at, "args": {"value": row.value}}
