"""JSON as agents and servers write it in practice, including values that the standard does not allow."""

from __future__ import annotations

import math
from datetime import date

import pytest

from pytest_agentbench.lib.json_text import dumps, dumps_any, json_object, loads, readable, texts_in

DEEP = b"[" * 100_000 + b"]" * 100_000


def test_values_that_the_standard_does_not_allow() -> None:
    """NaN, unpaired surrogates and large numbers are read and written, as by the standard library."""
    assert math.isnan(loads(b"NaN"))
    assert "\ud83d" == loads(b'"\\ud83d"')
    assert b'{"a": "\\ud83d"}' == dumps({"a": "\ud83d"})
    assert b"1180591620717411303424" == dumps(2**70)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"{'a': 1}", DEEP])
def test_invalid_json(text: bytes) -> None:
    """Any text that is not JSON raises ValueError, and so does nesting that would overflow the stack."""
    with pytest.raises(ValueError, match=r"Expecting|utf-8|nested too deeply"):
        loads(text)

    assert json_object(text) is None


def test_what_cannot_be_written() -> None:
    """Writing a value that is nested too deeply raises ValueError."""
    value: list[object] = []
    for _ in range(100_000):
        value = [value]

    with pytest.raises(ValueError, match="nested too deeply"):
        dumps(value)


def test_objects_only() -> None:
    """`json_object` returns only objects, and None for any other JSON."""
    assert [{"a": 1}, None, None] == [json_object(text) for text in (b'{"a": 1}', b"[1]", b"1")]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("lamp \x00 😀", "lamp \x00 😀"),
        ("\ud83d\ude00", "😀"),
        ({"a": ["\ud83d", {"\ude00": 1}]}, {"a": ["\ufffd", {"\ufffd": 1}]}),
        ([10**30, None], [10**30, None]),
    ],
)
def test_halves_of_characters(value: object, expected: object) -> None:
    """Two surrogates that form a pair become the character. A lone one is replaced, and everything else stays."""
    assert expected == readable(value)


def test_any_value() -> None:
    """Values that JSON cannot express become texts, and non-finite numbers are kept. Values that are nested too deeply are refused."""
    text = dumps_any({"day": date(2026, 11, 26), "scores": [math.inf, 1.5]})

    assert b'{"day":"2026-11-26","scores":[Infinity,1.5]}' == text
    assert {"day": "2026-11-26", "scores": [math.inf, 1.5]} == loads(text)
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(ValueError, match="nested too deeply"):
        dumps_any(nested)


def test_texts_of_a_value() -> None:
    """All texts of a JSON value come in their order, keys of objects included. Numbers and null are left out."""
    assert ["a", "b", "c", "d", "e"] == [*texts_in({"a": ["b", 1, None, ("c",)], "d": {"e": True}})]
    assert ([], ["x"]) == ([*texts_in(7)], [*texts_in("x")])
