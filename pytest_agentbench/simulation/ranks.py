"""When simulated settings may be ranked: where they differ by more than the simulation of a known setting is off. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

LEAST = 0.05  # settings that differ by less are never told apart: one replay of a setting is as far from another, and luck is no proof


def gap(one: float, other: float, *, share: bool) -> float:
    """How far two numbers are apart: shares by their difference, others by the logarithm of their ratio."""
    if one == other:
        return 0.0
    if share:
        return abs(one - other)
    return abs(math.log(one / other)) if min(one, other) > 0 else math.inf


def distance(simulated: float, measured: float, interval: tuple[float, float] | None = None, *, share: bool = False) -> float:
    """How far a simulation is off, at most: from the farther end of the interval that what was measured lies in, and never below LEAST."""
    return max(LEAST, *(gap(simulated, end, share=share) for end in (measured, *(interval or ()))))


def ranks(values: Sequence[float], tolerance: float, *, rising: bool = False, share: bool = False) -> list[int]:
    """The place of each value: one more than there are others that are better by more than the tolerance."""
    return [1 + sum(_beats(other, value, rising) and gap(other, value, share=share) > tolerance for other in values) for value in values]


def _beats(one: float, other: float, rising: bool) -> bool:
    return one > other if rising else one < other


def spread(values: Sequence[float], *, share: bool = False) -> float:
    """How far the values are apart at most."""
    return gap(min(values), max(values), share=share)


def percentage(size: float, *, share: bool) -> str:
    """A gap in words: `12 %` of a ratio, `0.031` of a share."""
    if math.isinf(size):
        return "beyond any ratio"
    return f"{size:.3f}" if share else f"{math.expm1(size):.0%}".replace("%", " %")


def change(simulated: float, measured: float, *, share: bool) -> str:
    """From what was measured to what was simulated: `+32 %`, or `-0.004` of a share."""
    if share:
        return f"{simulated - measured:+.3f}"
    return f"{simulated / measured - 1:+.0%}".replace("%", " %") if measured else "measured nothing"
