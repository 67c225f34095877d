"""What numbers depend on beside rollouts: prices of tokens, scores, and objectives, with the calls that met these.

The tap computes costs as well, so nothing here may load pydantic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pytest_agentbench.stats.series import unknown

if TYPE_CHECKING:
    from pytest_agentbench.stats.series import Counts, Floats, Mask


@dataclass(frozen=True)
class TokenPrices:
    """Prices of a million tokens each, in one currency."""

    currency: str  # ISO 4217
    input: float  # prompt tokens
    output: float
    cached_input: float | None = None  # prompt tokens that came from the prefix cache; None: as the others

    def of(self, prompt: int, cached: int, output: int) -> float:
        """Returns what so many prompt tokens, `cached` of them from the prefix cache, and so many output tokens cost."""
        cached_input = self.input if self.cached_input is None else self.cached_input
        return float((prompt - cached) * self.input + cached * cached_input + output * self.output) / 1e6


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
