"""kv_events.jsonl: copying events from a stack's file to that of a run, and reading them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.backends.telemetry.kv_events import FAULTS, FILE, EventCopy, EventSource, KvEvent, event_of, read_kv_events
from pytest_agentbench.backends.telemetry.samples import Sampler, Sources
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.records import Json

STORED: Json = {
    "service": "worker",
    "replica": 1,
    "at": 100.5,
    "event": "stored",
    "blocks": [2**64 - 1, "ab"],
    "parent": 7,
    "block_size": 16,
}
REMOVED: Json = {"service": "worker", "replica": 1, "at": 101.5, "event": "removed", "blocks": [2**64 - 1]}


def written(file: Path, *lines: Json | str) -> Path:
    with file.open("a") as text:
        text.write("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return file


def test_new_events_are_copied(tmp_path: Path) -> None:
    """Events after the beginning are copied with the arm and the time of the monotonic clock. Lines that are not events are counted."""
    stack = written(tmp_path / "stack.jsonl", STORED)
    copy = EventCopy([EventSource(stack), EventSource(tmp_path / "later.jsonl", "b")], tmp_path / FILE)
    copy.copy()
    assert not (tmp_path / FILE).exists()

    now = time.time()
    written(stack, {**STORED, "at": now}, "{]", "[]", {**STORED, "event": "eaten"}, {"event": "cleared"})
    written(tmp_path / "later.jsonl", {**REMOVED, "at": now})
    copy.copy()
    copy.copy()
    stored, removed = read_kv_events(tmp_path)

    assert 4 == copy.ignored
    assert KvEvent(now, stored.at_ns, ("worker", 1), "stored", (2**64 - 1, "ab"), 7, 16) == stored
    assert KvEvent(now, removed.at_ns, ("b.worker", 1), "removed", (2**64 - 1,)) == removed
    assert abs(time.monotonic_ns() - stored.at_ns) < 60e9
    assert abs((time.time() - time.monotonic()) - (stored.at - stored.at_ns / 1e9)) < 1


def test_the_sampler_copies(tmp_path: Path) -> None:
    """The sampler of metrics copies events too, also if nothing else is sampled. It says how many lines it could not read."""
    stack = tmp_path / "stack.jsonl"
    sampler = Sampler(Sources(every_s=3600, kv_events=(EventSource(stack),)), tmp_path / "samples.jsonl")
    sampler.start()
    written(stack, STORED, "{]")
    sampler.stop()

    assert ["stored"] == [event.kind for event in read_kv_events(tmp_path)]
    assert [f"{FILE}: 1 lines could not be read"] == sampler.notes
    assert (True, False) == (Sources().are_empty, Sources(kv_events=(EventSource(stack),)).are_empty)


def test_a_run_without_events(tmp_path: Path) -> None:
    """A run directory without the file has no events, and no file is created without a source."""
    Sampler(Sources(), tmp_path / "samples.jsonl").stop()
    EventCopy((), tmp_path / FILE).copy()

    assert [] == [*read_kv_events(tmp_path)]
    assert not (tmp_path / FILE).exists()


def test_a_line_that_was_cut(tmp_path: Path) -> None:
    """The truncated last line of a killed session is ignored. A faulty line before it is named."""
    file = written(tmp_path / FILE, {**STORED, "ns": 1}, {**REMOVED, "ns": 2})
    with file.open("a") as text:
        text.write('{"at": 1')
    assert [1, 2] == [event.at_ns for event in read_kv_events(tmp_path)]

    written(file, "", STORED)
    with pytest.raises(ConfigError, match=rf"{FILE}:3: not a KV cache event: "):
        [*read_kv_events(tmp_path)]


WORDS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.sampled_from(["stored", "removed", "lost"])
VALUES = st.recursive(
    WORDS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3), max_leaves=6
)
KEYS = st.sampled_from([*STORED, "ns", "batches", "medium"])


@given(VALUES | st.dictionaries(KEYS, VALUES, max_size=9).map(lambda changes: {**STORED, "ns": 1, **changes}))
def test_any_json_is_an_event_or_a_fault(line: Any) -> None:
    """Any JSON value is an event or raises one of FAULTS."""
    try:
        event = event_of(line)
    except FAULTS:
        return

    assert event.kind in ("stored", "removed", "cleared", "lost")
    assert all(isinstance(block, int | str) for block in event.blocks)
    assert event.block_size is None or event.block_size >= 1
