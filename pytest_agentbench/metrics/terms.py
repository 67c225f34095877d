"""What numbers depend on beside rollouts: objectives, prices, scores; and which calls met the objectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pytest_agentbench.metrics.cost import TokenPrices
from pytest_agentbench.stats.arrays import unknown

if TYPE_CHECKING:
    from pytest_agentbench.stats.arrays import Counts, Floats, Mask

GOOD, BAD, UNKNOWN = 1, 0, -1


class Objective(NamedTuple):
    """The greatest latency that a good call may have."""

    name: str  # of the metric
    limit_ms: float
    column: str  # of calls, milliseconds; NaN if a call has no such latency
    expected: bool  # a call without this latency cannot be judged; otherwise it breaks no promise: one event has no gap, one token no TPOT


@dataclass(frozen=True)
class Terms:
    """What metrics depend on beside the rollouts of a slice."""

    objectives: Sequence[Objective] = ()  # that a good call meets
    prices: TokenPrices | None = None  # of the backend under test
    score: float | None = None  # mean of the main score; None if there is none, or less of it is better
    passed: int = 0  # rollouts that reached the floor of the main score


def misses(column: Callable[[str], Floats], objective: Objective) -> Mask:
    """Returns which calls missed an objective; one without such a latency did not."""
    missed: Mask = column(objective.column) > objective.limit_ms
    return missed


def verdicts_of(column: Callable[[str], Floats], failed: Mask, objectives: Sequence[Objective]) -> Counts:
    """Returns GOOD for each call that met all objectives, BAD if it missed one or failed, UNKNOWN if it lacks an expected latency."""
    missed, lacking = failed.copy(), failed & False
    for objective in objectives:
        missed |= misses(column, objective)
        if objective.expected:
            lacking |= unknown(column(objective.column))
    verdicts: Counts = (~missed).astype(int) - 2 * (lacking & ~missed)
    return verdicts
