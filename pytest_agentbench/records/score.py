"""A score: a number that statistics can use, and what it is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

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
