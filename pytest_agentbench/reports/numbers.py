"""Numbers as all reports write them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def number(value: Any, digits: int = 1) -> str:
    """Returns a number for a table, and `-` if there is none. A word stays as it is."""
    if value is None or isinstance(value, str):
        return value or "-"
    return f"{value:,.{digits}f}"


def significant(value: float | None) -> str:
    """Returns a number of any size with four significant digits and at least one behind the point; `-` if there is none."""
    return number(value, max(1, 3 - math.floor(math.log10(abs(value)))) if value else 1)


def percent(share: float | None) -> str:
    """Returns `99.9 %`, and `-` if there is no share. What is below 1 is never `100 %`, and what is above 0 is never `0 %`."""
    if share is None:
        return "-"
    if 0 < share < 0.0005:
        return "below 0.1 %"
    return f"{min(share * 100, 99.9) if share < 1 else share * 100:.1f} %"


def brackets(interval: tuple[float, float] | None) -> str:
    """Returns `[11.0, 13.5]`, and an empty text if there is no interval."""
    return "" if interval is None else f"[{number(interval[0])}, {number(interval[1])}]"


def seconds_text(seconds: float) -> str:
    """Returns seconds; if they are less than a tenth, as milliseconds."""
    return f"{seconds:.1f} s" if seconds >= 0.1 else f"{seconds * 1000:.1f} ms"


def each_count(amounts: Mapping[str, int]) -> str:
    """Returns `97 ok, 3 limit`; what did not happen is left out."""
    return ", ".join(f"{amount} {name}" for name, amount in amounts.items() if amount)


def count(amount: int, noun: str) -> str:
    """Returns `1 test`, and `2 tests`."""
    return f"{amount:,} {noun}{'s' * (amount != 1)}"
