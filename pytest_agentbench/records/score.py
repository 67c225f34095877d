"""A score, which is a number that statistics can use and what it is made of, and its scale: which end is better, its range and its unit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

BETTER = ("higher", "lower")


@dataclass(frozen=True)
class Scale:
    """What a scorer declares of its scores. The scale of a scorer that declares nothing is UNDECLARED."""

    better: str = "higher"  # `higher` or `lower`
    least: float | None = None  # the smallest possible value; null: there is none, or it is unknown
    greatest: float | None = None  # the greatest possible value; null: there is none, or it is unknown
    unit: str = ""  # of the values, such as `mistakes`; empty if the scorer names none
    declared: bool = False  # whether the scorer declares it; else higher is taken as better
    threshold: float | None = None  # of a rollout, for suites that set none; null: there is none

    @property
    def falling(self) -> bool:
        """Whether lower values are better."""
        return self.better == "lower"

    @property
    def worst(self) -> float | None:
        """The worst possible value; None if there is none or it is unknown."""
        return self.greatest if self.falling else self.least

    @property
    def best(self) -> float | None:
        """The best possible value; None if there is none or it is unknown."""
        return self.least if self.falling else self.greatest

    @property
    def limits(self) -> tuple[float, float] | None:
        """The least and the greatest value; None unless both are known."""
        return None if self.least is None or self.greatest is None else (self.least, self.greatest)

    @property
    def width(self) -> float | None:
        """The greatest possible difference of two values; None unless both ends are known."""
        return None if self.limits is None else self.limits[1] - self.limits[0]

    @property
    def sign(self) -> str:
        """The relation of a value that is good enough to its threshold."""
        return "<=" if self.falling else ">="

    def contains(self, value: float) -> bool:
        """Returns whether a scorer with this scale may give a value."""
        return (self.least is None or self.least <= value) and (self.greatest is None or value <= self.greatest)

    def is_comparable(self, other: Scale) -> bool:
        """Returns whether values on both scales mean the same: the direction and the range are equal."""
        return (self.better, self.least, self.greatest) == (other.better, other.least, other.greatest)

    def loss(self, value: float) -> float:
        """Returns a number that is greater for a worse value."""
        return value if self.falling else -value

    @property
    def range_text(self) -> str:
        """`between 0 and 1`, `0 or more`, `0 or less`; `any number` without a known end."""
        if limits := self.limits:
            return f"between {limits[0]:g} and {limits[1]:g}"
        if self.least is not None:
            return f"{self.least:g} or more"
        return "any number" if self.greatest is None else f"{self.greatest:g} or less"

    @property
    def text(self) -> str:
        """`lower is better, 0 or more, mistakes`: the scale in a reader's words."""
        if not self.declared:
            return "higher is taken as better, because the scorer does not declare it; range unknown"
        return ", ".join(filter(None, (f"{self.better} is better", self.range_text, self.unit)))


UNDECLARED = Scale()

#: Of scores of other tools that are shares.
SHARE = Scale(least=0.0, greatest=1.0, declared=True)


def scale_in(scales: Mapping[str, Scale], score: str) -> Scale:
    """Returns the scale of a score, UNDECLARED if it is not among the scales."""
    return scales.get(score, UNDECLARED)


LARGEST_SCORE = 1e15  # every whole number up to it is exact, and squares and their sums are finite


def is_score(value: float) -> bool:
    """Whether statistics could use it; raises TypeError for what is no number."""
    return math.fabs(value) <= LARGEST_SCORE


class Score(float):
    """A number with its parts (other numbers) and an explanation for the reader of a failure. ValueError: statistics cannot use it."""

    parts: Mapping[str, float]
    explanation: str

    def __new__(cls, value: float, parts: Mapping[str, Any] | None = None, explanation: str = "") -> Self:
        if not is_score(value):
            raise ValueError(f"{value!r} is not a score, which is a number between -{LARGEST_SCORE:g} and {LARGEST_SCORE:g}")
        self = super().__new__(cls, value)
        self.parts = dict(parts or {})
        self.explanation = explanation
        return self

    @property
    def value(self) -> float:
        """The number without its parts."""
        return float(self)

    def __repr__(self) -> str:
        return f"{float(self):.3f}"

    def __reduce__(self) -> tuple[type[Score], tuple[float, Mapping[str, float], str]]:
        return Score, (float(self), self.parts, self.explanation)
