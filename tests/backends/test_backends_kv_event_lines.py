"""backends/kv_event_lines.py: messages of engines in, lines of a file out. The messages are those of real engines."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

SCRIPT = Path(__file__).parents[2] / "backends" / "kv_event_lines.py"
SPEC = importlib.util.spec_from_file_location(SCRIPT.stem, SCRIPT)
assert SPEC is not None
assert SPEC.loader is not None
script: Any = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(script)

#: A message of the mocker of Dynamo 1.6.1 after `msgspec.msgpack.decode`, with fewer tokens.
MOCKER = [
    1795818411.245594,
    [
        {
            "type": "BlockStored",
            "block_hashes": [6893466962702656444],
            "parent_block_hash": 529879873028586895,
            "token_ids": [1317, 24],
            "block_size": 16,
            "group_idx": 0,
        }
    ],
    0,
]
#: Events as vLLM publishes them: arrays, whose hashes may be bytes.
ARRAYS = [
    100.5,
    [
        ["BlockStored", [b"\x01\xff", 3], None, [1, 2], 2, None, "GPU"],
        ["BlockRemoved", [3], "CPU"],
        ["AllBlocksCleared"],
        ["SomethingNew", 1],
    ],
]


def test_events_of_the_mocker() -> None:
    """An event that is an object becomes a line without its tokens."""
    assert [
        {"at": 1795818411.245594, "event": "stored", "blocks": [6893466962702656444], "parent": 529879873028586895, "block_size": 16}
    ] == [*script.lines_of(MOCKER)]


def test_events_as_arrays() -> None:
    """Events that are arrays become the same lines. Bytes become hexadecimal digits, and unknown events are left out."""
    assert [
        {"at": 100.5, "event": "stored", "blocks": ["01ff", 3], "block_size": 2, "medium": "GPU"},
        {"at": 100.5, "event": "removed", "blocks": [3], "medium": "CPU"},
        {"at": 100.5, "event": "cleared"},
    ] == [*script.lines_of(ARRAYS)]


def test_missing_batches() -> None:
    """A gap in the numbers of batches is a line before the events. The first batch, and the first one after a restart, have no gap."""
    publisher = script.Publisher("worker", 2)
    kinds = [next(line["event"] for line in publisher.lines(number, ARRAYS)) for number in (5, 6, 9, 0)]
    lost = next(publisher.lines(3, MOCKER))

    assert ["stored", "stored", "lost", "stored"] == kinds
    assert {"service": "worker", "replica": 2, "at": 1795818411.245594, "event": "lost", "batches": 2} == lost


WORDS = st.none() | st.integers() | st.floats() | st.binary(max_size=3) | st.sampled_from(["BlockStored", "BlockRemoved"])
VALUES = st.recursive(WORDS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3))


@given(VALUES | st.lists(VALUES, max_size=4).map(lambda events: [1.0, events]))
def test_any_message_is_lines_or_a_fault(batch: Any) -> None:
    """Whatever is published becomes lines, or raises ValueError."""
    try:
        lines = [*script.lines_of(batch)]
    except ValueError:
        return

    assert all(line["event"] in ("stored", "removed", "cleared") for line in lines)


@pytest.mark.parametrize("batch", [[], 1, [1.0, [{"kind": "BlockStored"}]], [float("nan"), 7], [1.0, [[[]]]]])
def test_other_messages(batch: Any) -> None:
    """A message that is not a batch raises ValueError."""
    with pytest.raises(ValueError, match="not a batch of KV events"):
        [*script.lines_of(batch)]
