"""The decorator `@scorer`, by which a scorer declares whether higher or lower scores are better, their range and their unit."""

from __future__ import annotations

import builtins
import functools
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pytest_agentbench.lib.user_code import options_of
from pytest_agentbench.records.rollout import BETTER, UNDECLARED, Scale, is_score

ATTRIBUTE = "__agentbench_scale__"  # attribute of a scorer with its Declaration

Range = tuple[float, float] | Callable[..., tuple[float, float]]
Declared = TypeVar("Declared", bound=Callable[..., Any])


@dataclass(frozen=True)
class Declaration:
    """The arguments of the decorator `@scorer` of one scorer. The scorer keeps them in the attribute ATTRIBUTE."""

    better: str
    range: Range
    unit: str
    threshold: float | None

    def scale(self, options: Mapping[str, Any]) -> Scale:
        """Returns the scale of the scores if the scorer has these options. Raises ValueError if the range or the threshold is invalid."""
        ends = self.range(**options) if callable(self.range) else self.range
        least, greatest = _ends(ends)
        scale = Scale(self.better, _finite(least), _finite(greatest), self.unit, declared=True, threshold=self.threshold)
        if self.threshold is not None and not (is_score(self.threshold) and scale.contains(self.threshold)):
            raise ValueError(f"@scorer: threshold={self.threshold:g} must be in the range of the scores, which are {scale.range_text}")
        return scale


def scorer(
    *, better: str = "higher", range: Range = (-math.inf, math.inf), unit: str = "", threshold: float | None = None
) -> Callable[[Declared], Declared]:
    """Declares what the scores of a function mean. The function itself is not changed, and can be called as before.

    Args:
        better: "higher" or "lower".
        range: The least and the greatest possible score. `math.inf` stands for an end that does not exist. A range that depends on the
            scorer's options is a function that takes them as keyword arguments and returns both ends.
        unit: A plural noun, such as "mistakes".
        threshold: The score that a rollout must reach to pass, for suites that set no threshold.

    Raises:
        ValueError: `better` is unknown, the range is empty, or the threshold is outside the range.
    """
    if better not in BETTER:
        raise ValueError(f'@scorer: better={better!r} is unknown; use better="higher" or better="lower"')
    if not isinstance(unit, str) or len(unit.splitlines()) > 1:
        raise ValueError(f"@scorer: unit={unit!r} must be a noun on one line, such as unit='mistakes'")
    declaration = Declaration(better, range, unit, threshold)
    if not callable(range):
        declaration.scale({})

    def declare(function: Declared) -> Declared:
        setattr(function, ATTRIBUTE, declaration)
        return function

    return declare


def scale_of(function: Any) -> Scale:
    """Returns the scale that a scorer declares, with the options that were applied to it. Returns UNDECLARED if it declares none.

    Raises ValueError if the options lead to an invalid range.
    """
    bound: dict[str, Any] = {}
    while True:
        if (declaration := _declaration(function)) is not None:
            break
        if isinstance(function, functools.partial):
            bound = {**function.keywords, **bound}
            function = function.func
        elif (inner := getattr(function, "__wrapped__", None)) is not None:
            function = inner
        else:
            return UNDECLARED
    if not callable(declaration.range):
        return declaration.scale({})
    inner = inspect.unwrap(function)
    while isinstance(inner, functools.partial):
        bound = {**inner.keywords, **bound}
        inner = inspect.unwrap(inner.func)
    return declaration.scale({**options_of(inner), **bound})


def _declaration(function: Any) -> Declaration | None:
    """Returns the declaration of a scorer, which is a function or a callable object, or None if it has none."""
    for place in (function, getattr(type(function), "__call__", None)):  # noqa: B004 - `__call__` of its class
        declaration = getattr(place, ATTRIBUTE, None)
        if isinstance(declaration, Declaration):
            return declaration
    return None


def _ends(ends: Any) -> tuple[float, float]:
    if isinstance(ends, builtins.tuple | builtins.list) and len(ends) == 2:
        least, greatest = ends
        numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in ends)
        if numbers and least < greatest and all(is_score(each) or abs(each) == math.inf for each in ends):
            return float(least), float(greatest)
    raise ValueError(f"@scorer: range={ends!r} must be two numbers, the least score before the greatest one, such as range=(0, math.inf)")


def _finite(end: float) -> float | None:
    return end if math.isfinite(end) else None
