"""Scorers that compare the answer's text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.scorers import Scorer
from pytest_agentbench.scorers.exact import exact
from pytest_agentbench.scorers.numeric import numbers, numeric
from pytest_agentbench.scorers.regex import regex
from tests.scorers.records import records


@pytest.mark.parametrize(
    ("answer", "options", "value"),
    [
        (" Paris\n", {"answer": "Paris"}, 1.0),
        ("paris", {"answer": "Paris"}, 0.0),
        ("paris", {"answer": "Paris", "ignore_case": True}, 1.0),
        ("It is Paris", {"answer": "Paris"}, 0.0),
        ("Lutetia", {"answer": ["Paris", "Lutetia"]}, 1.0),
        ("", {"answer": ""}, 1.0),
    ],
)
def test_exact(answer: str, options: dict[str, Any], value: float) -> None:
    """The whole answer must be one of the expected texts. Outer spaces do not count, and case does not if `ignore_case` is set."""
    assert value == exact(*records(answer=answer), **options)


@pytest.mark.parametrize(
    ("answer", "pattern", "value", "explanation"),
    [
        ("It is Paris.", "Paris", 1.0, "found 'Paris', which matches 'Paris'"),
        ("It is paris.", "(?i)PARIS", 1.0, "found 'paris', which matches '(?i)PARIS'"),
        ("It is Rome.", ["Paris", "^Rome"], 0.0, "nothing in the answer matches 'Paris' or '^Rome'"),
        ("Rome it is.", ["Paris", "^Rome"], 1.0, "found 'Rome', which matches '^Rome'"),
    ],
)
def test_regex(answer: str, pattern: str | list[str], value: float, explanation: str) -> None:
    """A pattern may match anywhere in the answer. One of several patterns is enough."""
    score = regex(*records(answer=answer), pattern=pattern)

    assert (value, explanation) == (score, score.explanation)


@pytest.mark.parametrize(
    ("answer", "expected", "value"),
    [
        ("First 3, then 42.", 42, 1.0),
        ("42 is more than 3.", 42, 0.0),  # the last one is the answer
        ("$1,234,567.50 in all", 1234567.5, 1.0),
        ("1'234 or 1\u202f234", "1,234", 1.0),
        ("a total of 5kg", 5, 1.0),
        ("choose 1,2,3", 3, 1.0),
        ("from 2020-2024", 2024, 1.0),  # the hyphen is not a minus sign
        ("it fell by -3.5 degrees", -3.5, 1.0),
        ("\u22123", -3, 1.0),
        ("-$3", -3, 1.0),
        (".5", 0.5, 1.0),
        ("6.02e23", 6.02e23, 1.0),
        ("about 25 %", 25, 1.0),
        ("about 25 percent", 0.25, 1.0),
        ("about 0.25", "25%", 1.0),
        ("about 25%", "25%", 1.0),
        ("about 0.25%", "25%", 0.0),
        ("CO2", 2, 0.0),  # digits inside words are not numbers
        ("none", 0, 0.0),
        ("7", [6, 7], 1.0),
    ],
)
def test_numeric(answer: str, expected: Any, value: float) -> None:
    """The last number counts, in any usual notation. Units are ignored, and a percent sign may be missing."""
    assert value == numeric(*records(answer=answer), answer=expected)


@pytest.mark.parametrize("answer", ["9" * 400, "1e999"])
def test_a_number_that_no_float_holds(answer: str) -> None:
    """A number that is too large for a float is compared as usual, but is not among the parts, which are JSON numbers."""
    right, wrong = (numeric(*records(answer=answer), answer=expected) for expected in (answer, 5))

    assert (1.0, 0.0, {}, {}) == (right, wrong, right.parts, wrong.parts)
    assert len(wrong.explanation) < 300


def test_tolerances() -> None:
    """The larger of the two tolerances applies, and includes its bounds."""
    at = records(answer="101")

    assert [0.0, 1.0, 0.0, 1.0, 1.0] == [
        numeric(*at, answer=100),
        numeric(*at, answer=100, absolute=1),
        numeric(*at, answer=100, relative=0.0099),
        numeric(*at, answer=100, relative=0.01),
        numeric(*at, answer=100, absolute=0.1, relative=0.01),
    ]


def test_explanations() -> None:
    """The explanation of a wrong number shows the number that was taken as the answer."""
    assert "the last number of the answer is $1,000, expected 5" == numeric(*records(answer="It is $1,000."), answer=5).explanation
    assert "there is no number in the answer, expected 5" == numeric(*records(answer="No idea."), answer=5).explanation


@pytest.mark.parametrize("scorer", [exact, regex, numeric])
def test_where_the_answer_comes_from(scorer: Scorer) -> None:
    """The option takes precedence over the scenario's metadata, under `answer` or the key that an option names."""
    assert 1.0 == scorer(*records(answer="7", answer_is="7"), key="answer_is")  # type: ignore[call-arg]
    scenario, rollout = records(answer="7")
    scenario.metadata["answer"] = "7"

    assert 1.0 == scorer(scenario, rollout)


@pytest.mark.parametrize("scorer", [exact, regex, numeric])
def test_no_answer_is_known(scorer: Scorer) -> None:
    """Without an expected answer there is no score, but an error that says where the answer was expected."""
    with pytest.raises(LookupError, match="scenario s1 has no expected answer; add 'answer' to its metadata, or set the scorer's option"):
        scorer(*records(answer="7"))


def test_an_expected_answer_that_is_no_number() -> None:
    """An expected answer that is not a number is a fault of the label, not a score of 0."""
    with pytest.raises(ValueError, match="the expected answer 'seven' is not one number"):
        numeric(*records(answer="7"), answer="seven")


@given(st.integers() | st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**12), max_value=10**12))
def test_a_number_in_words_around_it(number: Any) -> None:
    """Any number is found in a text, with and without separators, and equals itself without tolerance."""
    for text in (f"It is {number}.", f"It is {number:,} euros", f"= {number}%"):
        assert 1.0 == numeric(*records(answer=text), answer=str(number))


@given(st.text())
def test_any_text(text: str) -> None:
    """No text raises an error, and all numbers found in it are finite."""
    assert all(each.value.is_finite() for each in numbers(text))


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.floats(0, 1e3), st.floats(0, 1e3))
def test_a_larger_tolerance_accepts_no_less(expected: float, actual: float, small: float, more: float) -> None:
    """A number that is accepted is still accepted with a larger tolerance."""
    given = records(answer=repr(actual))

    assert numeric(*given, answer=expected, absolute=small) <= numeric(*given, answer=expected, absolute=small + more)
