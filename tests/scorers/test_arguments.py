"""Whether a call fits a label, and the explanation if it does not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.records import Json, ToolCall
from pytest_agentbench.scorers.arguments import fits
from pytest_agentbench.suites.suite import Tool

BOOK = Tool(
    "book",
    "Books a room.",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "nights": {"type": "integer", "default": 1},
            "view": {"type": "string", "enum": ["sea", "garden"], "default": "garden"},
            "guests": {"type": "array", "items": {"type": "object", "properties": {"age": {"type": "integer"}}}},
            "address": {"type": "object", "properties": {"zip": {"type": "string"}, "country": {"type": "string", "default": "NL"}}},
        },
    },
)


def _label(**parameters: Any) -> Json:
    return {"tool": "book", "parameters": parameters}


def _accepts(*optional: str, **values: list[Any]) -> Json:
    return {"tool": "book", "accepts": values, "optional": [*optional]}


@pytest.mark.parametrize(
    ("arguments", "label"),
    [
        ({"city": "rome "}, _label(city="Rome")),
        ({"city": "Rome", "nights": "2"}, _label(city="Rome", nights=2)),
        ({"city": "Rome", "nights": 1}, _label(city="Rome")),  # the schema's default
        ({"city": "Rome"}, _label(city="Rome", nights=1, view="Garden")),
        ({"anything": 1}, {"tool": "book"}),  # a label without arguments accepts any
        ({}, _label()),
        ({"city": "Roma"}, _accepts(city=["Rome", "Roma"])),
        ({}, _accepts("city", city=["Rome"])),
        ({}, _accepts(nights=[3, 1])),
        ({"guests": [{"age": "4"}, {"age": 7}]}, _label(guests=[{"age": 4}, {"age": 7.0}])),
        ({"address": {"zip": 10, "country": "nl"}}, _label(address={"zip": "10"})),
        ({"address": {"zip": "2"}}, _accepts(address=[{"accepts": {"zip": ["1", "2"], "street": ["A"]}, "optional": ["street"]}])),
        ({"guests": [{"age": 5}]}, _accepts(guests=[[{"accepts": {"age": [4, 5]}}], []])),
    ],
)
def test_calls_that_fit(arguments: Json, label: Json) -> None:
    """Any accepted value fits. An optional argument may be missing, and a missing argument has the schema's default."""
    assert None is fits(ToolCall("Book", arguments, 1), label, BOOK)


@pytest.mark.parametrize(
    ("arguments", "label", "fault"),
    [
        ({"city": "Milan"}, _label(city="Rome"), 'city is "Milan", expected "Rome"'),
        ({"city": "Milan"}, _accepts(city=["Rome", "Roma"]), 'city is "Milan", expected "Rome" or "Roma"'),
        ({"city": "Milan"}, _accepts("city", city=["Rome"]), 'city is "Milan", expected "Rome"'),
        ({}, _label(city="Rome"), 'city is missing, expected "Rome"'),
        ({}, _label(nights=2), "nights is missing, expected 2"),
        ({"nights": 2}, _label(), "nights is 2, expected to be left out"),
        ({"x": None}, _label(), "x is null, expected to be left out"),
        ({"nights": 2, "city": "Milan"}, _label(city="Rome"), 'city is "Milan", expected "Rome"; nights is 2, expected to be left out'),
        ({"guests": [{"age": 4}]}, _label(guests=[{"age": 4}, {"age": 7}]), 'guests is [{"age": 4}], expected [{"age": 4}, {"age": 7}]'),
        (
            {"address": {"zip": "3"}},
            _accepts(address=[{"accepts": {"zip": ["1", "2"]}}]),
            'address is {"zip": "3"}, expected {"zip": "1" or "2"}',
        ),
        ({"city": ["Rome"]}, _label(city="Rome"), 'city is ["Rome"], expected "Rome"'),
    ],
)
def test_calls_that_do_not_fit(arguments: Json, label: Json, fault: str) -> None:
    """The fault names every wrong argument, its value and the expected value."""
    assert fault == fits(ToolCall("book", arguments, 1), label, BOOK)


def test_calls_of_other_tools() -> None:
    """A call of another tool, and one whose arguments could not be parsed, fit no label with arguments."""
    broken = ToolCall("book", {}, 1, problem="malformed_arguments", raw="{")

    assert "it is a call of cook" == fits(ToolCall("cook", {}, 1), _label())
    assert "the arguments could not be parsed" == fits(broken, _label(), BOOK)
    assert "the arguments could not be parsed" == fits(broken, _label(city="Rome", nights=2), BOOK)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(st.sampled_from(["city", "nights", "view", "guests", "address", "x"]), JSON_VALUES, max_size=4)


@given(ARGUMENTS)
def test_identity(arguments: Json) -> None:
    """A call fits the label made from its own arguments, in either form and with or without a schema."""
    for tool in (BOOK, None):
        assert None is fits(ToolCall("book", arguments, 1), _label(**arguments), tool)
        assert None is fits(ToolCall("book", arguments, 1), _accepts(**{name: [0, value] for name, value in arguments.items()}), tool)


@given(ARGUMENTS, ARGUMENTS, ARGUMENTS)
def test_more_accepted_values_reject_no_call(arguments: Json, expected: Json, others: Json) -> None:
    """A call that fits a label still fits if the label accepts more values."""
    narrow = {name: [value] for name, value in expected.items()}
    wide = {name: [*values, others.get(name)] for name, values in narrow.items()}

    if fits(ToolCall("book", arguments, 1), _accepts(**narrow), BOOK) is None:
        assert None is fits(ToolCall("book", arguments, 1), _accepts("city", **wide), BOOK)
