"""Records survive the conversion to JSON and back, and errors in a file are named with their place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.lib.codec import plain, read, received
from pytest_agentbench.records import OPEN, Score
from pytest_agentbench.runs.run_file import Run
from tests.made_runs import run_of


@dataclass(frozen=True)
class Box:
    """A record with fields of several types."""

    name: str
    size: float | None
    ends: tuple[float, float] | None
    word: float | str = 0.0


@dataclass(frozen=True)
class Shelf:
    """A record with nested records and an open mapping, in which plugins store their own keys."""

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
def test_any_record_survives_json(shelf: Shelf) -> None:
    """Any record is read back from its JSON as an equal record. Keys of plugins are written next to the record's own keys."""
    written = json.loads(json.dumps(plain(shelf)))

    assert shelf == read(Shelf, written)
    assert {"boxes", "places", "full", "anything", *shelf.more} == written.keys()


def test_a_run_is_read_as_it_was() -> None:
    """A whole run survives the conversion, too."""
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
        ({"boxes": [{"name": "a", "size": 1}]}, "boxes[0].ends is missing"),
        ({"boxes": [{**GOOD["boxes"][0], "sise": 1}]}, "boxes[0].sise is unknown; known are: name, size, ends, word"),
    ],
)
def test_errors_name_their_place(change: dict[str, Any], sentence: str) -> None:
    """The message for the first error has its place and the expected type. Nothing is guessed, and no key is ignored."""
    with pytest.raises(ValueError, match=r".") as raised:
        read(Shelf, {**GOOD, **change})

    assert sentence == str(raised.value)


@dataclass(frozen=True)
class Figures:
    """A record whose values are records, numbers or None."""

    first: Box | float | None
    rest: Mapping[str, Box | float | None] = field(default_factory=dict, metadata=OPEN)


FIGURE = st.none() | NUMBERS | BOXES


@given(st.builds(Figures, FIGURE, st.dictionaries(st.text("xyz", min_size=1), FIGURE)))
def test_a_record_or_a_number(figures: Figures) -> None:
    """A field for a record, a number or None is read back unchanged, also in an open mapping."""
    written = json.loads(json.dumps(plain(figures)))

    assert figures == read(Figures, written) == received(Figures, written)


def test_json_of_a_record_or_a_number() -> None:
    """In such a field, a record becomes an object, a number stays a number even if it is 0 or whole, and None becomes null."""
    box = Box("a", 1.5, None, "b")
    written = {"first": {"name": "a", "size": 1.5, "ends": None, "word": "b"}, "zero": 0.0, "whole": 2, "nothing": None}

    assert written == plain(Figures(box, {"zero": 0.0, "whole": 2, "nothing": None}))
    assert Figures(box, {"zero": 0.0, "whole": 2, "nothing": None}) == read(Figures, written)
    assert Box("a", 1.5, None) == read(Figures, {"first": {"name": "a", "size": 1.5, "ends": None}}).first


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"first": "a"}, "first is a text, not an object"),
        ({"first": True}, "first is true or false, not an object"),
        ({"first": []}, "first is a list, not an object"),
        ({"first": {}}, "first.name is missing"),
        ({"first": {**GOOD["boxes"][0], "size": "big"}}, "first.size is a text, not a number"),
        ({"first": {**GOOD["boxes"][0], "sise": 1}}, "first.sise is unknown; known are: name, size, ends, word"),
        ({"other": "a"}, "other is a text, not an object"),
        ({"other": {**GOOD["boxes"][0], "ends": [1.0]}}, "other.ends has 1 elements, not 2"),
    ],
)
def test_neither_a_record_nor_a_number(change: dict[str, Any], sentence: str) -> None:
    """In such a field, a value of another type is refused with its place. A fault in a record is reported with the place inside it."""
    with pytest.raises(ValueError, match=r".") as raised:
        read(Figures, {"first": None, **change})

    assert sentence == str(raised.value)


def test_no_object_at_all() -> None:
    """If a file does not contain an object, the error has no place."""
    with pytest.raises(ValueError, match=r"^it is a list, not an object$"):
        read(Shelf, [])


class Stamp(NamedTuple):
    """A row of an array. A file may omit its last elements."""

    at: int
    kind: str
    tokens: int | None = None


@dataclass(frozen=True)
class Parcel:
    """A record with types that JSON does not have."""

    label: str
    stamps: tuple[Stamp, ...] = ()
    scores: Mapping[str, Score] = field(default_factory=dict)
    folder: Path | None = None
    until: date = date(2026, 1, 1)
    ends: tuple[tuple[str, ...], ...] = ()
    content: dict[str, Any] = field(default_factory=dict)


STAMPS = st.builds(Stamp, st.integers(), st.text(), st.none() | st.integers())
SCORES = st.builds(Score, st.floats(-1e9, 1e9), st.dictionaries(st.text(), NUMBERS), st.text())
PATHS = st.none() | st.lists(st.text("abc", min_size=1), min_size=1).map(lambda parts: Path(*parts))
ENDS = st.lists(st.lists(st.text()).map(tuple)).map(tuple)
PARCELS = st.builds(Parcel, st.text(), st.lists(STAMPS).map(tuple), st.dictionaries(st.text(), SCORES), PATHS, st.dates(), ENDS, PLUGINS)


@given(PARCELS)
def test_types_that_json_does_not_have(parcel: Parcel) -> None:
    """Scores keep their parts, paths and dates become texts, and rows become arrays. Files and messages have the same JSON."""
    written = json.loads(json.dumps(plain(parcel)))

    assert parcel == read(Parcel, written) == received(Parcel, written)
    assert [score.parts for score in parcel.scores.values()] == [score.parts for score in read(Parcel, written).scores.values()]


@given(PARCELS, st.sampled_from([each for each in Parcel.__dataclass_fields__ if each != "label"]))
def test_a_missing_field(parcel: Parcel, name: str) -> None:
    """A missing field gets its default if it is read from a file. In a message it is an error that names the field."""
    written = plain(parcel)
    del written[name]

    assert getattr(Parcel(""), name) == getattr(read(Parcel, written), name)
    with pytest.raises(ValueError, match=f"^{name} is missing$"):
        received(Parcel, written)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"stamps": [[1, "a"], [2]]}, "stamps[1] has 1 elements, not 3"),
        ({"stamps": [[1, "a", None, None]]}, "stamps[0] has 4 elements, not 3"),
        ({"stamps": [[1, "a", None], [1.5, "a", None]]}, "stamps[1][0] is a number, not a whole number"),
        ({"scores": {"tsq": {"parts": {}}}}, "scores.tsq.value is missing"),
        ({"scores": {"tsq": {"value": "high"}}}, "scores.tsq.value is a text, not a number"),
        ({"scores": {"tsq": {"value": 1e99}}}, "scores.tsq: 1e+99 is not a score, which is a number between -1e+15 and 1e+15"),
        ({"folder": 1}, "folder is a whole number, not a text"),
        ({"until": "tomorrow"}, "until: Invalid isoformat string: 'tomorrow'"),
        ({"ends": [["a"], ["a", 1]]}, "ends[1][1] is a whole number, not a text"),
        ({"content": []}, "content is a list, not an object"),
        ({"label": None}, "label is null, not a text"),
    ],
)
def test_damage_is_named(change: dict[str, Any], sentence: str) -> None:
    """A wrong value in any kind of field is refused with its place in the record."""
    with pytest.raises(ValueError, match=r".") as raised:
        read(Parcel, {**plain(Parcel("a")), **change})

    assert sentence == str(raised.value)


def test_a_short_row_of_a_file() -> None:
    """Missing elements at the end of a row get their defaults, as fields do."""
    assert Stamp(1, "a") == read(Parcel, {"label": "", "stamps": [[1, "a"]]}).stamps[0]


def test_mutable_defaults_are_not_shared() -> None:
    """A mutable default is created anew for each record."""
    first, second = read(Parcel, {"label": "a"}), read(Parcel, {"label": "b"})

    assert first.content == second.content
    assert first.content is not second.content
