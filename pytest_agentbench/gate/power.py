"""What a suite can find: the smallest drop, and how many scenarios a smaller one needs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

from pytest_agentbench.gate.bounded import imaginary
from pytest_agentbench.gate.special import normal_quantile, student_t_quantile

ASSUMED = 0.12  # variance of a trial around its scenario's mean: suites at 0.8 whose scenarios differ as real ones do


@dataclass(frozen=True)
class Spread:
    """Where the noise of a suite's mean comes from, in squares of the score's unit."""

    between: float  # variance of the scenarios' true means
    within: float  # mean variance of one trial around its scenario's mean
    known: bool  # whether trials were repeated; without, `within` is everything, which is the safe side


def spread(trials: Mapping[str, Sequence[float]]) -> Spread:
    """The variance components of a run, by analysis of variance (Searle, Casella and McCulloch 1992, 3.6, for unequal numbers of trials).

    Var(suite mean) = (between + within / K) / n (Miller 2024, arXiv 2411.00640). Raises ValueError for fewer than two scenarios.
    """
    measured = [each for each in trials.values() if each]
    if len(measured) < 2:
        raise ValueError(f"{len(measured)} measured scenarios say nothing about their spread")
    count, total = len(measured), sum(map(len, measured))
    means = [math.fsum(each) / len(each) for each in measured]
    grand = math.fsum(map(math.fsum, measured)) / total
    if total == count:
        return Spread(0.0, math.fsum((mean - grand) ** 2 for mean in means) / (count - 1), known=False)
    inside = math.fsum((score - mean) ** 2 for each, mean in zip(measured, means, strict=True) for score in each)
    within = inside / (total - count)
    across = math.fsum(len(each) * (mean - grand) ** 2 for each, mean in zip(measured, means, strict=True)) / (count - 1)
    usual = (total - sum(len(each) ** 2 for each in measured) / total) / (count - 1)  # trials of a typical scenario
    return Spread(max(0.0, (across - within) / usual), within, known=True)


@dataclass(frozen=True)
class Design:
    """A comparison that is planned: scenarios, trials of each in the run and in its baseline, and the noise to expect."""

    n: int  # scenarios
    trials: int
    within: float  # variance of one trial around its scenario's mean
    change: float = 0.0  # variance of the scenarios' true changes
    confidence: float = 0.95
    reach: float = 1.0  # the width of the score's range

    def __post_init__(self) -> None:
        if self.n < 2 or self.trials < 1 or self.within < 0 or self.change < 0 or not 0.5 < self.confidence < 1 or self.reach <= 0:
            raise ValueError(f"no comparison can be planned like this: {self}")

    def smallest_drop(self, power: float = 0.8) -> float:
        """The margin with which an unchanged suite passes with this power, and the true drop that is shown to be one.

        t x error + z x deviation, as usual (Julious 2004, Statistics in Medicine 23:1921, section 3); error has the imaginary scenarios
        of `bounded` in it, which the estimate's own deviation has not.
        """
        _check_power(power)
        return self._beyond + normal_quantile(power) * self._deviation

    def pass_probability(self, margin: float, true: float = 0.0) -> float:
        """P(PASS) with this margin, where `true` is the suite's true mean change (below 0: a drop)."""
        surplus = margin + true * self.n / self._total - self._beyond
        if self._deviation == 0:
            return float(surplus > 0)
        return NormalDist().cdf(surplus / self._deviation)

    def fail_probability(self, margin: float, true: float) -> float:
        """P(FAIL): PASS, seen from the other side of -margin."""
        return self.pass_probability(-margin, -true)

    @property
    def _total(self) -> float:
        return self.n + 2 * imaginary(self.confidence)

    @property
    def _squares(self) -> float:
        return (self.change + 2 * self.within / self.trials) * self.n

    @property
    def _deviation(self) -> float:
        return math.sqrt(self._squares) / self._total

    @property
    def _beyond(self) -> float:
        """How far the estimate has to be from the threshold."""
        squares = self._squares + 2 * imaginary(self.confidence) * self.reach**2
        return student_t_quantile((1 + self.confidence) / 2, self.n - 1) * math.sqrt(squares / (self._total * (self._total - 1)))


def needed_scenarios(drop: float, design: Design, power: float = 0.8) -> int:
    """The fewest scenarios, up to ten million, with which a design's smallest drop is at most this one. Its own n is not looked at."""
    low, high = 1, 10_000_000  # too few, enough
    if not drop > 0 or replace(design, n=high).smallest_drop(power) > drop:
        raise ValueError(f"ten million scenarios do not show a drop of {drop}")
    while high - low > 1:
        middle = (low + high) // 2
        enough = replace(design, n=middle).smallest_drop(power) <= drop
        low, high = (low, middle) if enough else (middle, high)
    return high


MOST_TRIALS = 1000


def needed_trials(drop: float, design: Design, power: float = 0.8) -> int | None:
    """The fewest trials, up to a thousand, with which a design's smallest drop is at most this one; None where it takes more scenarios."""
    low, high = 0, MOST_TRIALS  # too few, enough
    if replace(design, trials=high).smallest_drop(power) > drop:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        enough = replace(design, trials=middle).smallest_drop(power) <= drop
        low, high = (low, middle) if enough else (middle, high)
    return high


def factor(degrees: float, confidence: float, power: float = 0.8) -> float:
    """How many standard errors a change has to be to be found with this power, by a run that is over."""
    return student_t_quantile((1 + confidence) / 2, degrees) + student_t_quantile(power, degrees)


def _check_power(power: float) -> None:
    if not 0.5 <= power < 1:
        raise ValueError(f"a power is between 0.5 and 1, such as 0.8, not {power}")
