"""The power of a suite: the smallest drop that it detects, and how many scenarios or trials a smaller drop needs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_agentbench.records import MOST_TRIALS
from pytest_agentbench.stats.decisions import SUITE
from pytest_agentbench.stats.mean_intervals import imaginary
from pytest_agentbench.stats.quantiles import normal_quantile, student_t_quantile

#: The smallest usable margin is LEAST x range / N for N rollouts. If a drop as large as the margin consists of rollouts that fail
#: completely, then with 3.7 / N it leaves no trace in 2.5 % of runs: (1 - m)^N. No rule that is right more often can pass below.
LEAST = 3.7

_STEPS = 30  # iterations, enough to converge
_NEGLIGIBLE = 1e-9

#: Defaults without data: variance of a trial around its scenario's mean, and the mean, as in real suites.
ASSUMED, ASSUMED_MEAN = 0.12, 0.8


@dataclass(frozen=True)
class Spread:
    """The components of the variance of a suite's scores, in squares of the score's unit."""

    between: float  # variance of the scenarios' true means
    within: float  # mean variance of one trial around its scenario's mean
    known: bool  # whether trials were repeated; otherwise `within` contains all variance, which is the safe side


def spread(trials: Mapping[str, Sequence[float]]) -> Spread:
    """Returns the variance components of a run by analysis of variance.

    For unequal numbers of trials see Searle, Casella and McCulloch 1992, 3.6.

    Var(suite mean) = (between + within / K) / n (Miller 2024, arXiv 2411.00640). Raises ValueError for fewer than two scenarios.
    """
    measured = [each for each in trials.values() if each]
    if len(measured) < 2:
        raise ValueError(f"the variance of scores needs at least 2 measured scenarios, not {len(measured)}; run more scenarios")
    count, total = len(measured), sum(map(len, measured))
    means = [math.fsum(each) / len(each) for each in measured]
    grand = math.fsum(map(math.fsum, measured)) / total
    if total == count:
        return Spread(0.0, math.fsum((mean - grand) ** 2 for mean in means) / (count - 1), known=False)
    inside = math.fsum((score - mean) ** 2 for each, mean in zip(measured, means, strict=True) for score in each)
    within = inside / (total - count)
    across = math.fsum(len(each) * (mean - grand) ** 2 for each, mean in zip(measured, means, strict=True)) / (count - 1)
    usual = (total - sum(len(each) ** 2 for each in measured) / total) / (count - 1)  # effective number of trials per scenario
    return Spread(max(0.0, (across - within) / usual), within, known=True)


@dataclass(frozen=True)
class ScoreLevel:
    """The mean and the spread of a suite's scores, from 0 to 1. Scores near 0 or 1 vary less, so noise changes if all scores drop."""

    mean: float
    squares: float  # mean of the scenarios' squared true means
    new: float = 0.5  # share of the new run in the variance of a difference
    pooled: float = 0.5  # share of the new run in all trials

    @classmethod
    def of(cls, means: Sequence[float], within: float, trials: float) -> ScoreLevel:
        """Returns the level of a baseline, given the means of its scenarios, the variance of a trial, and the number of trials.

        The variance is subtracted, because means of few trials vary more than the true means.
        """
        squares = math.fsum(each**2 for each in means) / len(means) - within / trials
        return cls(math.fsum(means) / len(means), max(squares, 0.0))

    def errors(self, drop: float) -> tuple[float, float]:
        """Returns by which factors the standard error of the difference to the baseline changes if the mean score drops by `drop`.

        The first factor is that of the standard error which a rule of the gate computes. It is the smaller of two: that of the interval,
        from the variances of both runs, and that of the permutation test, from all trials together. The second factor is that of the
        true standard error. The variance of a trial with the mean p is proportional to p (1 - p), as for passes and Beta distributed
        scores.
        """
        sampling = math.sqrt(1 - self.new + self.new * self._variance(drop))
        return min(sampling, math.sqrt(self._variance(self.pooled * drop))), sampling

    def _variance(self, drop: float) -> float:
        """Returns the variance of a trial after a drop, relative to the one before it."""
        left = max(0.0, 1 - drop / self.mean) if self.mean > 0 else 0.0
        before = self.mean - self.squares
        return (left * self.mean - left**2 * self.squares) / before if before > _NEGLIGIBLE else 1.0


def detectable_drop(distance: float, error: float, level: ScoreLevel | None, power: float = 0.8) -> float:
    """Returns the true drop that a rule detects with this power (see `reach`).

    A drop changes the noise of the scores (`level`), and with it the drop that can be detected, so it is found by iteration.
    """
    drop = reach(distance, error, power)
    for _ in range(_STEPS if level else 0):
        rule, sampling = level.errors(drop) if level else (1.0, 1.0)
        drop = reach(distance * rule, error * sampling, power)
    return drop


#: Number of events -> expected number with which at least so many occur in 80 % of runs, by the Poisson distribution.
EXPECTED = {1: 1.61, 2: 2.99, 3: 4.28, 4: 5.52, 5: 6.72}


def silent_drop(ours: int, theirs: int, *, single: bool, confidence: float) -> float:
    """Returns the share of failing rollouts that is detected with probability 0.8, if no trial has varied so far and the margin is 0.

    The permutation test needs a number of failed rollouts that depends on the numbers of rollouts in the run (`ours`) and in its
    baseline (`theirs`). Five are always enough, because the interval then uses the variance of trials. If one run has a `single` trial
    of each scenario, the interval uses the variance between scenarios, and four are enough.
    """
    dealt = math.ceil(math.log((1 - confidence) / 2) / math.log(ours / (ours + theirs)))
    return EXPECTED[min(dealt, 4 if single else 5)] / ours


def reach(distance: float, error: float, power: float = 0.8) -> float:
    """Returns how far from the threshold the true value has to be so that a rule decides (PASS or FAIL) with this power.

    `distance` is the distance from the estimate to the bound that the rule uses, with imaginary trials and scenarios. `error` is the
    standard error of sampling, without them. Julious (2004, Statistics in Medicine 23:1921, section 3).
    """
    return distance + normal_quantile(power) * error


@dataclass(frozen=True)
class Design:
    """A planned comparison: the scenarios, the trials of each in the run and in its baseline, and the expected noise."""

    n: int  # number of scenarios; for the population, of independent ones
    trials: int  # trials of each scenario in the run
    within: float  # variance of one trial around its scenario's mean
    base_trials: int = 0  # trials of each scenario in the baseline; 0: as many as in the run
    of: str = SUITE
    confidence: float = 0.95
    width: float = 1.0  # width of the score's range
    level: ScoreLevel | None = None  # level of the scores; None: the noise does not depend on it

    def __post_init__(self) -> None:
        if self.n < 2 or self.trials < 1 or self.base_trials < 0 or self.within < 0 or not 0.5 < self.confidence < 1 or self.width <= 0:
            raise ValueError(f"a comparison needs at least 2 scenarios, 1 trial, and a confidence between 0.5 and 1: {self}")

    def smallest_drop(self, power: float = 0.8) -> float:
        """Returns the true drop that leads to FAIL with this power if the margin is 0. Another margin is added to it."""
        _check_power(power)
        if self.within == 0 and self.of == SUITE:
            ours, theirs = (self.n * each for each in self._both)
            return self.width * silent_drop(ours, theirs, single=min(self._both) == 1, confidence=self.confidence)
        return detectable_drop(student_t_quantile((1 + self.confidence) / 2, self._degrees) * self._error, self._error, self.level, power)

    def smallest_margin(self, power: float = 0.8) -> float:
        """Returns the margin with which a run passes with this power if nothing has changed."""
        _check_power(power)
        plain = student_t_quantile((1 + self.confidence) / 2, self._degrees) * self._error
        return reach(max(plain, self._guarded), self._error, power)

    @property
    def _both(self) -> tuple[int, int]:
        return self.trials, self.base_trials or self.trials

    @property
    def _error(self) -> float:
        """The standard error of the mean difference."""
        return math.sqrt(self.within / self.n * sum(1 / each for each in self._both))

    @property
    def _degrees(self) -> float:
        return self.n * (sum(self._both) - 2) if self.of == SUITE and min(self._both) > 1 else self.n - 1

    @property
    def _guarded(self) -> float:
        """The distance from the estimate to the lower end of the interval if nothing has changed.

        The interval includes imaginary trials or, if it is about all scenarios like these (`of`), imaginary scenarios.
        """
        joined = 2 * imaginary(self.confidence)
        if self.of == SUITE:
            trials = self.n * min(self._both)
            error = math.sqrt((trials * self._error) ** 2 + joined * self.width**2) / (trials + joined)
            return student_t_quantile((1 + self.confidence) / 2, max(self._degrees, self.n - 1)) * error
        squares = (self.n * self._error) ** 2 + joined * self.width**2
        total = self.n + joined
        return student_t_quantile((1 + self.confidence) / 2, self.n - 1) * math.sqrt(squares / (total * (total - 1)))


def least_margin(n: int, trials: int, width: float = 1.0) -> float:
    """Returns the margin below which runs can hardly pass, whatever they measure: 3.7 / (n K) of the range (docs/compare/gates.md)."""
    return LEAST * width / (n * trials)


def trials_for(margin: float, n: int, width: float = 1.0) -> int:
    """Returns the fewest trials of each scenario with which a margin above 0 is at least `least_margin`."""
    return math.ceil(LEAST * width / (n * margin) - 1e-9)


def trials_that_narrow(factor: float, trials: int, base_trials: float = 0.0) -> int | None:
    """Returns the fewest trials of each scenario with which an estimate has `factor` times the information that it has with `trials`.

    The squared width of an interval is proportional to 1 / information. With a baseline of `base_trials` trials, which do not become
    more, information is 1 / (1 / trials + 1 / base_trials). Returns None if then no number is enough, and at most MOST_TRIALS + 1.
    """
    information = factor * (1 / (1 / trials + 1 / base_trials) if base_trials else trials)
    if base_trials and information >= base_trials:
        return None
    total = 1 / (1 / information - 1 / base_trials) if base_trials else information
    return min(math.ceil(total - 1e-9), MOST_TRIALS + 1) if total < math.inf else MOST_TRIALS + 1


def needed_scenarios(drop: float, design: Design, power: float = 0.8) -> int:
    """Returns the fewest scenarios, up to ten million, with which the smallest detectable drop of a design is at most `drop`."""
    low, high = 1, 10_000_000  # too few, enough
    if not drop > 0 or replace(design, n=high).smallest_drop(power) > drop:
        raise ValueError(f"even ten million scenarios cannot detect a drop of {drop}; choose a larger one")
    while high - low > 1:
        middle = (low + high) // 2
        enough = replace(design, n=middle).smallest_drop(power) <= drop
        low, high = (low, middle) if enough else (middle, high)
    return high


def needed_trials(drop: float, design: Design, power: float = 0.8) -> int | None:
    """Returns the fewest trials with which a design can detect `drop`, or None if more than a thousand are needed.

    If `base_trials` is set, the baseline keeps that number.
    """
    low, high = 0, MOST_TRIALS  # too few, enough
    if replace(design, trials=high).smallest_drop(power) > drop:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        enough = replace(design, trials=middle).smallest_drop(power) <= drop
        low, high = (low, middle) if enough else (middle, high)
    return high


def _check_power(power: float) -> None:
    if not 0.5 <= power < 1:
        raise ValueError(f"power {power} must be at least 0.5 and less than 1, such as 0.8")
