"""Helpers that pass answers to a reader."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from pytest_agentbench.records import Json
from pytest_agentbench.tap.dialects import Dialect
from pytest_agentbench.tap.dialects.reader import AnswerReader, DialectReader
from pytest_agentbench.tap.stream import Event, EventReader, NetworkRead

#: Any JSON.
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def odd(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Objects that have some of these fields with arbitrary values, or any other JSON value."""
    return st.fixed_dictionaries({}, optional={name: value | anything for name, value in fields.items()}) | anything


def text_of(data: Any) -> bytes:
    return data if isinstance(data, bytes) else json.dumps(data).encode()


def read(dialect: Dialect, *data: Any, name: str = "message") -> DialectReader:
    """Returns the reader of a stream whose events have these data, JSON or bytes. The n-th event arrives at n ns."""
    reading = dialect()
    for place, each in enumerate(data):
        reading.add(Event(place, None, True, name, text_of(each)))
    reading.end()
    return reading


def read_recorded(dialect: Dialect, file: str) -> DialectReader:
    """Returns the reader of a stream as a server sent it, with one read for each event and each comment."""
    parts = (Path(__file__).parent / "streams" / file).read_bytes().removesuffix(b"\n\n").split(b"\n\n")
    reads = [NetworkRead(place, 5, part + b"\n\n") for place, part in enumerate(parts)]
    reading = dialect()
    for event in EventReader().feed(reads):
        reading.add(event)
    reading.end()
    return reading


def read_whole(dialect: Dialect, data: Any) -> DialectReader:
    """Returns the reader of an answer without streaming."""
    reading = dialect()
    reading.read_complete(text_of(data))
    return reading


def assembled(reading: DialectReader) -> Any:
    """Returns the answer as without streaming. The reader must have no fault."""
    whole = reading.assemble()
    assert (None, "") == (reading.error_kind, reading.error)
    return json.loads(whole)


def fault(reading: AnswerReader) -> tuple[str | None, str]:
    return reading.error_kind, reading.error


def kinds(reading: AnswerReader) -> list[str]:
    return [chunk.kind for chunk in reading.chunks]


def tokens(reading: AnswerReader) -> tuple[int | None, int | None, int | None, str]:
    """(prompt, completion, cached, source)"""
    return reading.prompt_tokens, reading.completion_tokens, reading.cached_tokens, reading.token_source


@st.composite
def cuts(draw: st.DrawFn, text: str) -> list[str]:
    """A text in pieces, some of which may be empty."""
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


@st.composite
def interleaved(draw: st.DrawFn, queues: Sequence[Sequence[Any]]) -> list[Any]:
    """The items of several queues in any order that keeps the order of each queue."""
    turns = draw(st.permutations([place for place, queue in enumerate(queues) for _ in queue]))
    heads = [iter(queue) for queue in queues]
    return [next(heads[turn]) for turn in turns]


#: Small objects, as the arguments of a tool call are.
objects: st.SearchStrategy[Json] = st.dictionaries(
    st.text(max_size=4), st.integers(-(2**53), 2**53) | st.text(max_size=6) | st.lists(st.none(), max_size=2), max_size=3
)
