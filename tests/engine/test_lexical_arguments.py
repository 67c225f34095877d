"""Filling arguments by JSON schema."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_agentbench.engine.lexical.arguments import choose, fill, flag
from pytest_agentbench.records import Json


def _fill(text: str, required: list[str], **properties: Any) -> Json:
    return fill({"type": "object", "properties": properties, "required": required}, text, text)


STRING = {"type": "string"}
NUMBER = {"type": "number"}


@pytest.mark.parametrize(
    ("name", "schema", "text", "expected"),
    [
        ("amount", NUMBER, "move $1,250.50 now", 1250.5),
        ("guests", {"type": "integer"}, "a table for 4", 4),
        ("guests", {"type": "integer"}, "about 4.5", None),
        ("interest_rate", NUMBER, "10000 at 6.5%", 6.5),
        ("term_months", {"type": "integer"}, "over 5 years", 60),
        ("term_years", {"type": "integer"}, "over 5 years", 5),
        ("radius_miles", NUMBER, "10 within 3 miles", 3),
        ("min_amount", NUMBER, "over 50", 50),
        ("min_amount", NUMBER, "for 50", None),
        ("when", STRING, "on June 14", "june 14"),
        ("preferred_time", STRING, "Friday at 3:30 pm", "15:30"),
        ("email", STRING, "it is jo@example.org", "jo@example.org"),
        ("last_four", STRING, "ending in 4471", "4471"),
        ("from_account", STRING, "from my savings account ending in 4471", "savings account 4471"),
        ("from_account", {**STRING, "description": '"savings" and so on'}, "from my savings account ending in 4471", "savings 4471"),
        ("merchant", STRING, "charged at Whole Foods", "Whole Foods"),
        ("payee", STRING, "pay rent to my landlord every month", "landlord"),
        ("city", STRING, "a branch in San Diego", "San Diego"),
        ("new_value", {**STRING, "description": "The new phone or email."}, "to 555-201-8890", "555-201-8890"),
        ("memo", STRING, 'with the note "rent share"', "rent share"),
        ("question", STRING, "Why is the sky blue?", "Why is the sky blue?"),
        ("tags", {"type": "array", "items": {"enum": ["red", "blue"]}}, "a blue one", ["blue"]),
        ("amount", {"anyOf": [{"type": "null"}, NUMBER]}, "pay 12", 12),
        ("amount", {"type": ["null", "number"]}, "pay 12", 12),
        ("nested", {"type": "object"}, "pay 12", None),
        ("kind", {**STRING, "default": "usual"}, "pay 12", "usual"),
        ("kind", {"enum": ["a1", "b2"]}, "pay 12", "a1"),
        ("payee", STRING, "pay 12", None),
    ],
)
def test_fills_one_required_argument(name: str, schema: Json, text: str, expected: object) -> None:
    """The name, type, enum and description of a parameter decide its value. A value that is not found is left out."""
    assert ({} if expected is None else {name: expected}) == _fill(text, [name], **{name: schema})


def test_a_value_is_used_once() -> None:
    """Two parameters of the same kind get two values. If there is only one value, the second gets none."""
    dates = {"start_date": STRING, "end_date": STRING}

    assert {"start_date": "may 1", "end_date": "may 5"} == _fill("from May 1 to May 5", [], **dates)
    assert {"start_date": "may 1"} == _fill("since May 1", ["start_date", "end_date"], **dates)


def test_optional_arguments_come_from_their_own_part() -> None:
    """Only required arguments are also searched in the rest of the message."""
    schema = {"properties": {"amount": NUMBER, "day": STRING, "kind": {"enum": ["a1"]}}, "required": ["amount"]}

    assert {"amount": 12} == fill(schema, "pay it", "pay it, I mean 12 dollars, on Friday")


@pytest.mark.parametrize(
    ("text", "partly", "expected"),
    [
        ("my home equity line", False, "home_equity"),
        ("for my home", False, None),
        ("for my home", True, "home_equity"),
        ("to buy a vehicle", False, "auto"),
        ("auto or home equity", False, "auto"),
        ("a boat", True, None),
        ("a loan", False, None),
    ],
)
def test_choices_match_by_stem_and_explanation(text: str, partly: bool, expected: str | None) -> None:
    """A choice matches if all its words are in the text, or a word that only its explanation has."""
    description = "Kind of loan: auto (car or vehicle loan), home_equity (line of credit, a loan)."

    assert expected == choose(text, ["home_equity", "auto"], description, partly=partly)


def test_flags_hear_negations() -> None:
    """A flag is true if it is mentioned, false after a negation, and otherwise missing."""
    texts = ("with pending charges", "without any pending charges", "my balance")

    assert [True, False, None] == [flag(text, "include_pending") for text in texts]
