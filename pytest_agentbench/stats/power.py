"""What a suite can find: the smallest drop, and how many scenarios a smaller one needs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_agentbench.records import MOST_TRIALS
from pytest_agentbench.stats.decisions import SUITE
from pytest_agentbench.stats.mean_intervals import imaginary
from pytest_agentbench.stats.quantiles import normal_quantile, student_t_quantile

#: In shares of the range over all rollouts. With 3.7 / N a drop as large as the margin, made of rollouts that fail wholly, shows nothing
#: in 2.5 % of runs: (1 - m)^N; no rule that is right more often can pass below.
LEAST = 3.7

_STEPS = 30  # of an iteration that converges
_NEGLIGIBLE = 1e-9

#: Where nothing is known: variance of a trial around its scenario's mean, and the mean, of suites whose scenarios differ as real ones do.
ASSUMED, ASSUMED_MEAN = 0.12, 0.8


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
class ScoreLevel:
    """Where a suite's scores lie in their range of 0 to 1, from which follows how their noise changes when every scenario fades alike."""

    mean: float
    squares: float  # mean of the scenarios' squared true means
    new: float = 0.5  # share of the variance of a difference that the new run has
    pooled: float = 0.5  # share of all trials that it has

    @classmethod
    def of(cls, means: Sequence[float], within: float, trials: float) -> ScoreLevel:
        """Of a baseline's scenarios with so many trials, whose variance is `within`; means of few trials vary more than the truth."""
        squares = math.fsum(each**2 for each in means) / len(means) - within / trials
        return cls(math.fsum(means) / len(means), max(squares, 0.0))

    def errors(self, drop: float) -> tuple[float, float]:
        """Standard errors of the difference after a drop, in the one before: of the rule and of sampling.

        Noise goes by p (1 - p), as of passes and of Beta distributed scores. The rule has that of both runs, or, dealing trials out
        anew, that of all trials together, which is less where the baseline has more of them.
        """
        sampling = math.sqrt(1 - self.new + self.new * self._variance(drop))
        return min(sampling, math.sqrt(self._variance(self.pooled * drop))), sampling

    def _variance(self, drop: float) -> float:
        """Of a trial after a drop, in that before."""
        left = max(0.0, 1 - drop / self.mean) if self.mean > 0 else 0.0
        before = self.mean - self.squares
        return (left * self.mean - left**2 * self.squares) / before if before > _NEGLIGIBLE else 1.0


def detectable_drop(distance: float, error: float, level: ScoreLevel | None, power: float = 0.8) -> float:
    """The true drop that is found with this power, as `reach` has it with the noise that there is after the drop."""
    drop = reach(distance, error, power)
    for _ in range(_STEPS if level else 0):
        rule, sampling = level.errors(drop) if level else (1.0, 1.0)
        drop = reach(distance * rule, error * sampling, power)
    return drop


#: So many rollouts have to be expected that there are one, two, ... in 80 % of runs: quantiles of Poisson distributions.
EXPECTED = {1: 1.61, 2: 2.99, 3: 4.28, 4: 5.52, 5: 6.72}


def silent_drop(ours: int, theirs: int, *, single: bool, confidence: float) -> float:
    """The drop that is found 4 times out of 5 where no trial varies; it is then made of rollouts that fail.

    With a margin of 0 it takes as many of them as make the permutation say so, of our rollouts and the baseline's, and five at most: then
    their variance is known. With a `single` trial in one run that is the variance between scenarios, from four on.
    """
    dealt = math.ceil(math.log((1 - confidence) / 2) / math.log(ours / (ours + theirs)))
    return EXPECTED[min(dealt, 4 if single else 5)] / ours


def reach(distance: float, error: float, power: float = 0.8) -> float:
    """How far away the truth has to be for the rule to say so with this power, which is all that is ever promised of a rule.

    `distance` is that from the estimate to the bound that the rule looks at (imaginary trials and scenarios are in it), `error` the
    standard error of sampling (they are not). Julious (2004, Statistics in Medicine 23:1921, section 3).
    """
    return distance + normal_quantile(power) * error


@dataclass(frozen=True)
class Design:
    """A comparison that is planned: scenarios, trials of each in the run and in its baseline, and the noise to expect."""

    n: int  # scenarios; of the population, independent ones
    trials: int
    within: float  # variance of one trial around its scenario's mean
    base_trials: int = 0  # of the baseline; 0: as many
    of: str = SUITE
    confidence: float = 0.95
    width: float = 1.0  # of the score's range
    level: ScoreLevel | None = None  # None: noise that does not depend on it

    def __post_init__(self) -> None:
        if self.n < 2 or self.trials < 1 or self.base_trials < 0 or self.within < 0 or not 0.5 < self.confidence < 1 or self.width <= 0:
            raise ValueError(f"no comparison can be planned like this: {self}")

    def smallest_drop(self, power: float = 0.8) -> float:
        """The true drop that FAILs with this power where the margin is 0; with another margin it comes on top."""
        _check_power(power)
        if self.within == 0 and self.of == SUITE:
            ours, theirs = (self.n * each for each in self._both)
            return self.width * silent_drop(ours, theirs, single=min(self._both) == 1, confidence=self.confidence)
        return detectable_drop(student_t_quantile((1 + self.confidence) / 2, self._degrees) * self._error, self._error, self.level, power)

    def smallest_margin(self, power: float = 0.8) -> float:
        """The margin with which a run passes with this power when nothing has changed."""
        _check_power(power)
        plain = student_t_quantile((1 + self.confidence) / 2, self._degrees) * self._error
        return reach(max(plain, self._guarded), self._error, power)

    @property
    def _both(self) -> tuple[int, int]:
        return self.trials, self.base_trials or self.trials

    @property
    def _error(self) -> float:
        """Standard error of the mean difference."""
        return math.sqrt(self.within / self.n * sum(1 / each for each in self._both))

    @property
    def _degrees(self) -> float:
        return self.n * (sum(self._both) - 2) if self.of == SUITE and min(self._both) > 1 else self.n - 1

    @property
    def _guarded(self) -> float:
        """From an estimate of 0 to the bound with imaginary trials, or of the population with imaginary scenarios."""
        joined = 2 * imaginary(self.confidence)
        if self.of == SUITE:
            trials = self.n * min(self._both)
            error = math.sqrt((trials * self._error) ** 2 + joined * self.width**2) / (trials + joined)
            return student_t_quantile((1 + self.confidence) / 2, max(self._degrees, self.n - 1)) * error
        squares = (self.n * self._error) ** 2 + joined * self.width**2
        total = self.n + joined
        return student_t_quantile((1 + self.confidence) / 2, self.n - 1) * math.sqrt(squares / (total * (total - 1)))


def least_margin(n: int, trials: int, width: float = 1.0) -> float:
    """Below it no run of a suite is likely to pass, whatever it measures: 3.7 / (n K) of the range (docs/gates.md)."""
    return LEAST * width / (n * trials)


def trials_for(margin: float, n: int, width: float = 1.0) -> int:
    """The fewest trials of each scenario with which a margin above 0 is not below the least one."""
    return math.ceil(LEAST * width / (n * margin) - 1e-9)


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


def needed_trials(drop: float, design: Design, power: float = 0.8) -> int | None:
    """The fewest trials, up to a thousand, with which a design's smallest drop is at most this one; None where it takes more.

    A baseline with trials of its own keeps them.
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
        raise ValueError(f"a power is between 0.5 and 1, such as 0.8, not {power}")
