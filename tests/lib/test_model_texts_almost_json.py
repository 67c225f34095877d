"""Arguments that are almost JSON: which ones are repaired, and which are refused because they are ambiguous."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.lib.model_texts import object_end, repaired
from pytest_agentbench.records import Json
from pytest_agentbench.suites.suite import Tool
from pytest_agentbench.tools.toolbox import Toolbox

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)
OBJECTS = st.dictionaries(st.text(max_size=8), VALUES, max_size=4)
#: Texts that Python and JSON escape in the same way, except for the quotation marks.
PLAIN = st.text(st.sampled_from("abc XYZ\"'{}[],:\n\t-é灯"), max_size=12)
PYTHON = st.dictionaries(
    PLAIN, st.recursive(st.none() | st.booleans() | st.integers(-99, 99) | PLAIN, lambda inner: st.lists(inner, max_size=3), max_leaves=6)
)
PIECES = st.sampled_from(["{", "}", "[", "]", '"', "'", ",", ":", "\\", "\n", " ", "True", "None", "1", "a", "```", "json"])
ANY_TEXT = st.text() | st.lists(PIECES, max_size=30).map("".join)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("{'item': 'lamp'}", {"item": "lamp"}),
        ("{'item': 'the \"big\" lamp'}", {"item": 'the "big" lamp'}),
        (r"{'item': 'Ann\'s lamp', 'where': 'C:\\shop'}", {"item": "Ann's lamp", "where": "C:\\shop"}),
        ("""{"item": "Ann's lamp", 'count': 2}""", {"item": "Ann's lamp", "count": 2}),
        ('{"item": "lamp", "sizes": [1, 2, ], }', {"item": "lamp", "sizes": [1, 2]}),
        ('{"new": True, "old": False, "by": None}', {"new": True, "old": False, "by": None}),
        ('{"item": "True"}', {"item": "True"}),
        ('{"item": "lamp"', {"item": "lamp"}),
        ('{"item": {"sizes": [1, {"cm": 2}', {"item": {"sizes": [1, {"cm": 2}]}}),
        ('```json\n{"item": "lamp"}\n```', {"item": "lamp"}),
        ('```\n{"item": "lamp"\n```', {"item": "lamp"}),
        ('The arguments are {"item": "lamp"}, I think.', {"item": "lamp"}),
        ('{"item": "lamp"} # the customer said so', {"item": "lamp"}),
        ("{}", {}),
    ],
)
def test_what_is_repaired(text: str, meant: Json) -> None:
    """Single quotes, extra commas, Python literals, missing closing brackets, code fences and text around the object are repaired."""
    assert meant == repaired(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "lamp",
        "{",
        '{"item": ',
        '{"item"',
        '{"item": "la',
        '{"item": "lamp", ',
        '{"sizes": [',
        '{"sizes": [1}',
        '{"item" "lamp"}',
        '{"count": 1 2}',
        '{"item": lamp}',
        "{item: 1}",
        '{"item": "lamp",, "count": 2}',
        "{,}",
        "{'item': 'Ann's lamp'}",
        '{"count": NaN}',
        '{"item": "a\nb"}',
        '{"item": "lamp"}{"item": "table"}',
        '[{"item": "lamp"}]',
        "[{'item': 'lamp'}]",
        "'lamp'",
        "{'lamp'}",
        "} {",
    ],
)
def test_what_is_not_repaired(text: str) -> None:
    """Truncated texts, several objects, lists and words without quotes are not repaired, because they are ambiguous."""
    assert None is repaired(text)


@given(OBJECTS, st.sampled_from([None, 2]))
def test_json_stays_as_it_is(value: Json, indent: int | None) -> None:
    """A valid JSON object is never changed, and its end is found."""
    text = json.dumps(value, indent=indent)

    assert value == repaired(text)
    assert len(text) == object_end(text + " {", 0)


@given(VALUES, st.booleans())
def test_valid_arguments_are_never_repaired(value: Any, escaped: bool) -> None:
    """Arguments that are valid JSON are not changed. An object is accepted, and any other value counts as malformed."""
    tools = Toolbox([Tool("find", "", {"type": "object"})])

    call = tools.parse_call("find", json.dumps(value, ensure_ascii=escaped), 1)

    assert not call.repaired
    assert (value, None) == (call.arguments, call.problem) if isinstance(value, dict) else "malformed_arguments" == call.problem


@given(PYTHON)
def test_what_python_writes(value: Json) -> None:
    """The repr of a Python dictionary is repaired."""
    assert value == repaired(repr(value))


@given(ANY_TEXT)
def test_any_text(text: str) -> None:
    """No text raises an error, and the result is always an object."""
    meant = repaired(text)

    assert meant is None or isinstance(meant, dict)


@pytest.mark.parametrize("piece", ["{", '{"a":', "[", "'", '\\"', "{'", "```", " ", ",", '{"a":[', "{}"])
def test_a_model_that_stutters(piece: str) -> None:
    """A text that a model repeats endlessly is refused, in time proportional to its length."""
    assert None is repaired("{" + piece * 100_000)
