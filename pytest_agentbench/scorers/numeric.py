"""Checks whether the last number of the answer is the expected one."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

from pytest_agentbench.lib.foreign import cut
from pytest_agentbench.records import Rollout, Score
from pytest_agentbench.scorers.declaration import scorer
from pytest_agentbench.scorers.matching import expected_answers

if TYPE_CHECKING:
    from pytest_agentbench.suites.suite import Scenario

SHOWN = 100  # maximum bytes of a number in the explanation

#: Groups of three digits may be separated by commas, apostrophes and no-break spaces. A hyphen between two words or numbers is not a sign.
_NUMBER = re.compile(
    r"(?<![\w.])(?P<sign>(?<![\w)])[-+\u2212])?"
    r"[$\u20ac\u00a3\u00a5]?(?P<digits>\d{1,3}(?:[,'\u2019\u00a0\u202f]\d{3})+(?!\d)|\d+|(?=\.\d))(?P<rest>(?:\.\d+)?(?:[eE][-+]?\d{1,3})?)"
    r"\s?(?P<percent>%|percent\b)?",
    re.ASCII,
)


class Number(NamedTuple):
    """A number in a text."""

    value: Decimal
    percent: bool
    text: str


@scorer(range=(0, 1))
def numeric(
    scenario: Scenario,
    rollout: Rollout,
    *,
    answer: float | str | list[float | str] | None = None,
    key: str = "answer",
    absolute: float = 0.0,
    relative: float = 0.0,
) -> Score:
    """Returns 1.0 if the last number of the answer is an expected one within the larger of two tolerances, otherwise 0.0.

    Numbers are read as `1,234.50`, `1'234`, `-3`, `6.02e23`, `$5` and `5kg`. Units are ignored. A percent sign may be missing in either
    number: 25 % equals 25 and 0.25. An answer without a number scores 0.

    Options:
        answer: The expected number, or a list of them.
        key: Key of the expected answer in the scenario's `metadata`, if no option gives it.
        absolute: Accepted difference, in the unit of the number.
        relative: Accepted difference, as a share of the expected number.
    """
    expected = [_expected(each) for each in expected_answers(scenario, answer, key)]
    expected_text = " or ".join(each.text for each in expected)
    parsed = numbers(rollout.answer)
    if not parsed:
        return Score(0.0, {}, f"there is no number in the answer, expected {expected_text}")
    last = parsed[-1]
    right = any(_near(one, other, absolute, relative) for each in expected for one, other in _readings(each, last))
    number = float(last.value)  # Infinite if it has more than 308 digits, for example if the model repeats itself.
    parts = {"number": number} if math.isfinite(number) else {}
    return Score(float(right), parts, f"the last number of the answer is {cut(last.text, SHOWN)}, expected {expected_text}")


def numbers(text: str) -> list[Number]:
    """Returns all numbers of a text in their order."""
    return [_read(match) for match in _NUMBER.finditer(text)]


def _read(match: re.Match[str]) -> Number:
    sign = "-" if match["sign"] in ("-", "\u2212") else ""
    digits = re.sub(r"\D", "", match["digits"])
    return Number(Decimal(f"{sign}{digits}{match['rest']}"), bool(match["percent"]), match[0].strip())


def _expected(answer: float | str) -> Number:
    parsed = numbers(answer) if isinstance(answer, str) else [Number(Decimal(repr(answer)), False, repr(answer))]
    if len(parsed) != 1:
        raise ValueError(f"the expected answer {answer!r} is not one number; correct it in the data set or in the scorer's option")
    return parsed[0]


def _readings(expected: Number, actual: Number) -> list[tuple[Decimal, Decimal]]:
    """Returns the pairs (expected, actual) of values to compare; one equal pair is enough.

    If only one of the numbers has a percent sign, it is compared as it is and divided by 100.
    """
    pairs = [(expected.value, actual.value)]
    if actual.percent and not expected.percent:
        pairs.append((expected.value, actual.value / 100))
    if expected.percent and not actual.percent:
        pairs.append((expected.value / 100, actual.value))
    return pairs


def _near(expected: Decimal, actual: Decimal, absolute: float, relative: float) -> bool:
    return abs(expected - actual) <= max(Decimal(repr(absolute)), Decimal(repr(relative)) * abs(expected))
