"""Records come back from JSON as they went, and what is wrong with a file is named with its place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.records import OPEN
from pytest_agentbench.runs.codec import plain, read
from pytest_agentbench.runs.contents import Run
from tests.made_runs import run_of


@dataclass(frozen=True)
class Box:
    """Something with a size."""

    name: str
    size: float | None
    ends: tuple[float, float] | None
    word: float | str = 0.0


@dataclass(frozen=True)
class Shelf:
    """Boxes, and what a plugin has to say."""

    boxes: tuple[Box, ...]
    places: Mapping[str, Mapping[str, int]]
    full: bool
    anything: Any
    more: Mapping[str, Any] = field(default_factory=dict, metadata=OPEN)


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
BOXES = st.builds(Box, st.text(), st.none() | NUMBERS, st.none() | st.tuples(NUMBERS, NUMBERS), NUMBERS | st.text())
PLUGINS = st.dictionaries(st.text("xyz", min_size=1), st.none() | st.integers() | st.lists(st.text()), max_size=3)
SHELVES = st.builds(
    Shelf,
    st.lists(BOXES).map(tuple),
    st.dictionaries(st.text(), st.dictionaries(st.text(), st.integers())),
    st.booleans(),
    st.none() | st.lists(st.integers()),
    PLUGINS,
)


@given(SHELVES)
def test_what_is_written_is_read(shelf: Shelf) -> None:
    """Whatever is in a record, its JSON is read as an equal record; what plugins added stands among its own keys."""
    written = json.loads(json.dumps(plain(shelf)))

    assert shelf == read(Shelf, written)
    assert {"boxes", "places", "full", "anything", *shelf.more} == written.keys()


def test_a_run_is_read_as_it_was() -> None:
    """The same holds of a whole run."""
    run = run_of()

    assert run == read(Run, json.loads(json.dumps(plain(run))))


GOOD: dict[str, Any] = {"boxes": [{"name": "a", "size": 1, "ends": None, "word": "b"}], "places": {"left": {"a": 1}}, "full": True}
GOOD["anything"] = None


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"full": 1}, "full is a whole number, not true or false"),
        ({"boxes": {}}, "boxes is an object, not a list"),
        ({"boxes": ["a"]}, "boxes[0] is a text, not an object"),
        ({"places": {"left": {"a": 1.5}}}, "places.left.a is a number, not a whole number"),
        ({"places": {"left": {"a": True}}}, "places.left.a is true or false, not a whole number"),
        ({"places": {"left": None}}, "places.left is null, not an object"),
        ({"boxes": [{**GOOD["boxes"][0], "size": "big"}]}, "boxes[0].size is a text, not a number"),
        ({"boxes": [{**GOOD["boxes"][0], "word": []}]}, "boxes[0].word is a list, not a number"),
        ({"boxes": [{**GOOD["boxes"][0], "ends": [1.0]}]}, "boxes[0].ends has 1 elements, not 2"),
        ({"boxes": [{"name": "a", "size": 1, "ends": None}]}, "boxes[0].word is missing"),
        ({"boxes": [{**GOOD["boxes"][0], "sise": 1}]}, "boxes[0].sise is unknown; known are: name, size, ends, word"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], sentence: str) -> None:
    """The first fault is told with its place and with what should be there; nothing is guessed, and no key is left out."""
    with pytest.raises(ValueError, match=r".") as raised:
        read(Shelf, {**GOOD, **change})

    assert sentence == str(raised.value)


def test_no_object_at_all() -> None:
    """A file that holds something else altogether has no place to name."""
    with pytest.raises(ValueError, match=r"^it is a list, not an object$"):
        read(Shelf, [])
