"""The search for the greatest level that is good enough: by doubling until one is not, and then by halving what lies between."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count

from pytest_agentbench.stats.decisions import PASS
from pytest_agentbench.sweep.verdict import SustainedRange, greatest

MOST = 14  # sessions of a search: enough to tell 1 from 1,000
NEAR = 0.1  # levels that are no further apart than this share of the smaller one are near enough


def search(session: Callable[[int], Mapping[int, str]], low: int, high: int) -> SustainedRange:
    """`session` measures a level, beside the lowest one, and gives the verdicts of what it measured: PASS, FAIL or INCONCLUSIVE.

    A level that is not shown to hold counts as too much, so the search goes on below it. At most MOST sessions.
    """
    verdicts: dict[int, str] = {}
    level: int | None = min(2 * low, high)
    for number in count(1):
        if level is None or number > MOST:
            break
        verdicts |= {each: verdict for each, verdict in session(level).items() if each == level or each not in verdicts}
        level = next_level(verdicts, low, high)
    return greatest(verdicts)


def next_level(verdicts: Mapping[int, str], low: int, high: int) -> int | None:
    """The level to be measured next; None: what is known is enough, or nothing holds at all."""
    if verdicts[low] != PASS:
        return None
    held = low
    for level in sorted(verdicts):
        if verdicts[level] != PASS:
            middle = (held + level) // 2
            return middle if level - held > max(1.0, held * NEAR) else None
        held = level
    return min(2 * held, high) if held < high else None
