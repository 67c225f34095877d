"""Comparison of argument values: which values count as the same."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.records import Json
from pytest_agentbench.scorers.arguments import same

INTEGER, NUMBER, TEXT, ANY = {"type": "integer"}, {"type": "number"}, {"type": "string"}, dict[str, Any]()
DATE = {"type": "string", "description": "the date of the transfer"}
UNIT = {"type": "string", "enum": ["celsius", "Fahrenheit"]}
TWINS = {"type": "string", "enum": ["M", "m"]}

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
SCHEMAS = st.sampled_from([INTEGER, NUMBER, TEXT, ANY, DATE, UNIT, TWINS, {"type": ["integer", "null"]}, {"anyOf": [INTEGER, TEXT]}])


@pytest.mark.parametrize(
    ("expected", "actual", "schema", "is_same"),
    [
        (5, 5.0, INTEGER, True),
        (5, "5", INTEGER, True),
        ("5", " 5.0", NUMBER, True),
        (0.1, "0.1", NUMBER, True),
        (2**63, str(2**63), INTEGER, True),
        (2**63, 2**63 + 1, INTEGER, False),  # compared exactly, not as floats
        ("five", 5, INTEGER, False),
        ("1_0", 10, INTEGER, False),  # a number only in Python's syntax
        (1, True, INTEGER, False),
        (0, False, ANY, False),
        ("5", 5, TEXT, True),
        ("5", 5.0, TEXT, True),
        ("0042", 42, TEXT, False),  # account numbers are texts
        ("0042", "42", TEXT, False),
        ("0042", "42", INTEGER, True),
        ("12.50", 12.5, ANY, True),
        ("12.50", "12.5", ANY, False),
        (5, "5", {"type": ["integer", "null"]}, True),
        ("5", 5, {"anyOf": [{"type": "null"}, INTEGER]}, True),
        (" Main  St", "main st", TEXT, True),
        ("Straße", "STRASSE", TEXT, True),
        ("main st", "mainst", TEXT, False),
        (None, None, TEXT, True),
        (None, "", TEXT, False),
        ("celsius", "Celsius ", UNIT, True),
        ("fahrenheit", "Fahrenheit", UNIT, True),
        ("celsius", "Fahrenheit", UNIT, False),
        ("celsius", "kelvin", UNIT, False),
        ("M", "m", TWINS, False),  # the enum tells them apart
        (5, "5", {"enum": [5, 10]}, True),
        ("2026-03-05", "5 March 2026", DATE, True),
        ("2026-03-05", "March 5th, 2026", DATE, True),
        ("2026-03-05", "Thursday, Mar 5 2026", DATE, True),
        ("2026-03-05", "2026/3/5", DATE, True),
        ("2026-03-05", "05.03.2026", DATE, True),
        ("2026-03-25", "03/25/2026", DATE, True),  # no month has the number 25
        ("2026-03-05", "03/05/2026", DATE, False),  # could be the third of May
        ("2026-05-03", "03/05/2026", DATE, False),  # could be the fifth of March
        ("2026-03-05", "03/05/2026", {**DATE, "description": "Date as MM/DD/YYYY"}, True),
        ("2026-05-03", "03/05/2026", {**DATE, "description": "Date as DD/MM/YYYY"}, True),
        ("2026-03-05", "5 March 2026", TEXT, False),  # the schema does not describe a date
        ("2026-03-05", "20260305", {"type": "string", "format": "date"}, True),
        ("2026-03-05T10:00:00Z", "2026-03-05T11:00:00+01:00", {"type": "string", "format": "date-time"}, True),
        ("2026-03-05T10:00:00Z", "2026-03-05", {"type": "string", "format": "date-time"}, False),
        ("2026-03-05", "5 March 2026", {"anyOf": [TEXT, {"type": "null"}], "description": "Date, if any"}, True),  # `str | None`
        ("2026-03-05", "5 March 2026", {"anyOf": [TEXT, {"type": "null"}], "description": "Day, if any"}, False),
        ("tomorrow", "Tomorrow", DATE, True),
        ("2026-02-30", "30 February 2026", DATE, False),
    ],
)
def test_same(expected: Any, actual: Any, schema: Json, is_same: bool) -> None:
    """Numbers, texts, enum values and dates are compared as the parameter's schema describes them."""
    assert is_same is same(expected, actual, schema)
    assert is_same is same(actual, expected, schema)


@given(SCALARS, SCALARS, SCHEMAS)
def test_symmetry(one: Any, other: Any, schema: Json) -> None:
    """Comparison does not depend on which of two values was expected."""
    assert same(one, other, schema) is same(other, one, schema)


@given(SCALARS, SCHEMAS)
def test_identity(value: Any, schema: Json) -> None:
    """Every value is the same as itself, under every schema."""
    assert same(value, value, schema)


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_and_its_text(number: float) -> None:
    """A number is the same as its own text, however large or small."""
    assert same(number, repr(number), NUMBER)


@given(st.dates())
def test_a_day_in_its_forms(day: date) -> None:
    """A date is the same in ISO form, in words and in unambiguous figures."""
    forms = (f"{day.day} {day:%B} {day.year:04}", f"{day:%b} {day.day}, {day.year:04}", f"{day.year:04}/{day.month}/{day.day}")

    assert [] == [form for form in forms if not same(day.isoformat(), form, DATE)]
