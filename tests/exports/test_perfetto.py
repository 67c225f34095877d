"""`agentbench export --as perfetto`: Chrome's trace events."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import fastjsonschema
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_agentbench.exports import load_writer
from pytest_agentbench.exports.files import ChosenRuns
from pytest_agentbench.records import Json, Rollout, ToolCall
from tests.made_runs import run_directory
from tests.tables.shop import ALL, BOUGHT, MS, START, call, rollout
from tests.tables.test_tables import SAMPLES

#: The schema of the events that we write, from the description of the format.
EVENT = {
    "type": "object",
    "required": ["ph", "pid", "tid", "name"],
    "properties": {
        "ph": {"enum": ["X", "C", "M"]},
        "pid": {"type": "integer"},
        "tid": {"type": "integer"},
        "name": {"type": "string", "minLength": 1},
        "cat": {"type": "string"},
        "ts": {"type": "number", "minimum": 0},
        "dur": {"type": "number", "minimum": 0},
        "args": {"type": "object"},
    },
    "allOf": [
        {"if": {"properties": {"ph": {"const": "X"}}}, "then": {"required": ["ts", "dur"]}},
        {"if": {"properties": {"ph": {"const": "C"}}}, "then": {"required": ["ts", "args"]}},
        {
            "if": {"properties": {"ph": {"const": "M"}}},
            "then": {"properties": {"name": {"enum": ["process_name", "thread_name", "thread_sort_index"]}}, "required": ["args"]},
        },
    ],
    "additionalProperties": False,
}
VALID = fastjsonschema.compile(
    {
        "type": "object",
        "required": ["traceEvents"],
        "properties": {"traceEvents": {"type": "array", "items": EVENT}, "displayTimeUnit": {"enum": ["ms", "ns"]}},
        "additionalProperties": False,
    }
)


def trace(folder: Path, *directories: Path) -> list[Json]:
    """Returns the events of some exported runs, after validating them."""
    load_writer("perfetto")(ChosenRuns(directories), folder)
    events: list[Json] = VALID(json.loads((folder / "trace.json").read_text(encoding="utf-8")))["traceEvents"]
    return events


def crossings(events: Sequence[Json]) -> list[tuple[Json, Json]]:
    """Returns pairs of slices of one thread that overlap without one containing the other."""
    threads = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            start = round(event["ts"] * 1e3)
            threads[event["pid"], event["tid"]].append((start, -(start + round(event["dur"] * 1e3)), event))
    crossed = []
    for slices in threads.values():
        open_: list[tuple[int, Json]] = []
        for start, negative, event in sorted(slices, key=lambda each: each[:2]):
            while open_ and open_[-1][0] <= start:
                open_.pop()
            crossed += [(open_[-1][1], event)] if open_ and -negative > open_[-1][0] else []
            open_.append((-negative, event))
    return crossed


def test_slices_are_nested(tmp_path: Path) -> None:
    """Attempts, calls, their parts, tools and programs are slices with names and times, and no two of a thread partly overlap."""
    events = trace(tmp_path, run_directory(tmp_path / "run", *ALL))
    slices = {(event["name"], event["cat"], event["ts"], event["dur"]) for event in events if event["ph"] == "X"}

    assert [] == crossings(events)
    assert {
        ("shop[shop-0]", "attempt", 0.0, 1e6),
        ("shop[shop-1]", "attempt", 1e5, 2e5),
        ("shop[shop-1]", "attempt", 4e5, 1e6),
        ("m", "call", 0.0, 2e5),
        ("first token", "call", 0.0, 1e5),
        ("decoding", "call", 1e5, 1e5),
        ("find_item", "tool", 2.5e5, 2e5),
        ("judge", "judge", 8.5e5, 1e5),
        ("program", "program", 5e5, 8.5e5),
    } <= slices


def test_slots_are_as_many_as_rollouts_in_flight(tmp_path: Path) -> None:
    """A slot is used again after its attempt has ended: three attempts, two of which overlap, have two slots."""
    events = trace(tmp_path, run_directory(tmp_path / "run", *ALL))

    assert {"slot 1", "slot 2"} == {event["args"]["name"] for event in events if event["name"] == "thread_name"}


def test_overlapping_slices_have_separate_threads(tmp_path: Path) -> None:
    """Two overlapping calls, and one that outlasts its attempt, are in additional threads."""
    calls = (call(0, 100, end=500), call(100, 300, end=600), call(900, 950, end=2_000))
    events = trace(tmp_path, run_directory(tmp_path / "run", rollout(calls=calls)))

    assert [] == crossings(events)
    assert {"slot 1", "slot 1, beside it 1"} == {event["args"]["name"] for event in events if event["name"] == "thread_name"}


def test_runs_begin_at_zero(tmp_path: Path) -> None:
    """Each run is a separate process that begins at 0, and its samples are counters."""
    later = replace(BOUGHT, started_at=BOUGHT.started_at + 1e6)
    one, two = (run_directory(tmp_path / name, each) for name, each in (("one", BOUGHT), ("two", later)))
    (one / "samples.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in SAMPLES))
    events = trace(tmp_path, one, two)

    assert {1: "one", 2: "two"} == {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert {1: 0, 2: 0} == {pid: min(event["ts"] for event in events if event["pid"] == pid and "ts" in event) for pid in (1, 2)}
    assert ['engine 0 running m="a"'] * 2 == [event["name"] for event in events if event["ph"] == "C" and "running" in event["name"]]


TIMES = st.tuples(st.integers(0, 1_000), st.integers(0, 300))


@settings(max_examples=50)
@given(st.lists(TIMES, max_size=8), st.lists(TIMES, max_size=8))
def test_slices_never_partly_overlap(calls: list[tuple[int, int]], tools: list[tuple[int, int]]) -> None:
    """Whatever overlaps in an attempt or outlasts it, no two slices of a thread partly overlap, and none is lost."""
    made: Rollout = rollout(
        calls=tuple(call(at, at + length // 2, end=at + length) for at, length in calls),
        tool_calls=tuple(ToolCall("t", {}, 1, started_ns=START + at * MS, ended_ns=START + (at + length) * MS) for at, length in tools),
    )
    with tempfile.TemporaryDirectory() as name:
        events = trace(Path(name), run_directory(Path(name) / "run", made))

    assert [] == crossings(events)
    assert len(calls) + len(tools) == sum(event.get("cat") in ("call", "tool") and event["name"] in ("m", "t") for event in events)
