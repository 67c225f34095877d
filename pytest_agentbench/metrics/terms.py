"""The inputs of metrics besides rollouts: prices of tokens, scores, and latency objectives. Also evaluates objectives.

The tap (the recording HTTP proxy) computes costs as well, so this module must not import pydantic.
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

    currency: str  # currency code, ISO 4217
    input: float  # price of prompt tokens
    output: float  # price of output tokens
    cached_input: float | None = None  # price of prompt tokens from the prefix cache; None: the price `input`

    def of(self, prompt: int, cached: int, output: int) -> float:
        """Returns the cost of some prompt tokens, `cached` of which are from the prefix cache, and output tokens."""
        cached_input = self.input if self.cached_input is None else self.cached_input
        return float((prompt - cached) * self.input + cached * cached_input + output * self.output) / 1e6


GOOD, BAD, UNKNOWN = 1, 0, -1


class Objective(NamedTuple):
    """A latency objective: the greatest latency that a good call may have."""

    name: str  # name of the metric
    limit_ms: float  # greatest latency, milliseconds
    column: str  # column of calls with the latency in milliseconds, NaN if a call has none
    expected: bool  # whether a call without this latency cannot be judged; if not, it meets the objective (one event has no gap)


@dataclass(frozen=True)
class Terms:
    """The inputs of metrics besides the rollouts of a slice: latency objectives, prices and scores."""

    objectives: Sequence[Objective] = ()  # objectives that a good call meets
    prices: TokenPrices | None = None  # prices of the backend under test
    score: float | None = None  # mean of the main score; None if there is none, or if lower values are better
    passed: int = 0  # number of rollouts that passed the threshold of the main score


def misses(column: Callable[[str], Floats], objective: Objective) -> Mask:
    """Returns for each call whether it missed an objective. A call without a value for that latency did not miss it."""
    missed: Mask = column(objective.column) > objective.limit_ms
    return missed


def verdicts_of(column: Callable[[str], Floats], failed: Mask, objectives: Sequence[Objective]) -> Counts:
    """Returns for each call GOOD if it met all objectives, BAD if it missed one or failed, and UNKNOWN if it lacks an expected latency."""
    missed, lacking = failed.copy(), failed & False
    for objective in objectives:
        missed |= misses(column, objective)
        if objective.expected:
            lacking |= unknown(column(objective.column))
    verdicts: Counts = (~missed).astype(int) - 2 * (lacking & ~missed)
    return verdicts
