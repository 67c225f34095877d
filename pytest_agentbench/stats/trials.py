"""`of suite`: is this suite's expected score lower? Scenarios are fixed, and what varies is their trials; clusters play no part.

Functions take arrays (..., scenarios, trials), so that `benchmarks/verdict-results.md` is made by the code that judges. A trial that was
not measured is nan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_agentbench.stats.special import normal_quantile, student_t_quantiles

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pytest_agentbench.stats.arrays import Floats

#: Scenarios whose trials have to differ before their variance is trusted: one scenario that broke half is all the variance that a sure
#: suite has, and its own estimate is 0 in half of the runs.
FEWEST_VARYING = 5

#: Imaginary trials at either end of the range, in squares of the normal quantile. They put a floor of 3.4 / N of the range under the
#: interval, and the least that any method can have is 3.0 / N (benchmarks/verdict-results.md).
IMAGINARY = 0.4

_ROUNDING = 1e-18  # relative to the square of what was measured: a variance below this is none


def packed(scores: Sequence[Sequence[float]]) -> Floats:
    """(scenarios, trials): one row a scenario, filled up with nan."""
    import numpy as np

    rows = np.full((len(scores), max(map(len, scores), default=0)), np.nan)
    for row, each in zip(rows, scores, strict=True):
        row[: len(each)] = each
    return rows


@dataclass(frozen=True)
class RunTrials:
    """The trials of one run, summed up by scenario: arrays (..., scenarios)."""

    count: Floats
    mean: Floats
    variance: Floats  # of a trial; nan of fewer than two

    @classmethod
    def of(cls, scores: Floats) -> RunTrials:
        """Of (..., scenarios, trials); each scenario has a trial at least."""
        import numpy as np

        measured = ~np.isnan(scores)
        count = measured.sum(-1).astype(np.float64)
        known = np.where(measured, scores, 0.0)
        mean = known.sum(-1) / count
        squares = np.where(measured, (known - mean[..., None]) ** 2, 0.0).sum(-1)
        squares = np.where(squares <= _ROUNDING * mean**2, 0.0, squares)
        with np.errstate(divide="ignore", invalid="ignore"):
            return cls(count, mean, squares / (count - 1))


@dataclass(frozen=True)
class Noise:
    """A mean over scenarios and how far chance may have moved it: arrays (...)."""

    mean: Floats
    variance: Floats
    degrees: Floats  # of freedom
    trials: Floats  # measured, in the run that has fewer
    scenarios: int
    paired: NDArray[np.bool_]  # whether the variance is that of scenarios among each other, which holds the spread of their changes too
    still: NDArray[np.bool_]  # whether nothing varies at all, which proves no certainty


def noise(*sides: RunTrials) -> Noise:
    """Of a run, or of a run and its baseline (the difference, new - base).

    - Scenarios with two trials or more on each side have a variance of their own, s^2 / K, and degrees of freedom by Welch (1947) and
      Satterthwaite (1946): V^2 / sum(v^2 / (nu + 2)) - 2, whose twos take the bias from s^4 at few degrees.
    - Those with a single trial share that of their values among each other, (d - D)^2 / (n (n - 1)): too wide where their changes
      differ, never too narrow (Neyman 1923; Cochran 1977, 5A.12).
    - Where fewer than `FEWEST_VARYING` scenarios vary, the larger of the two is taken.
    """
    import numpy as np

    new, *others = sides
    values = new.mean - others[0].mean if others else new.mean
    n = values.shape[-1]
    mean = values.mean(-1)
    apart = (values - mean[..., None]) ** 2 / (n * (n - 1))
    several = np.logical_and.reduce([side.count > 1 for side in sides])
    own = [np.where(several, side.variance / side.count, 0.0) / n**2 for side in sides]
    varying = np.logical_or.reduce([squares > 0 for squares in own])
    alone = (~several).sum(-1)
    left, between = np.where(several, 0.0, apart).sum(-1), apart.sum(-1)
    variance = left + sum(squares.sum(-1) for squares in own)
    with np.errstate(divide="ignore", invalid="ignore"):  # shares: the square of a variance is 0 for scores that differ by 1e-90 and less
        fourth = (left / variance) ** 2 / (alone + 1)
        for side, squares in zip(sides, own, strict=True):
            fourth += ((squares / variance[..., None]) ** 2 / (side.count + 1)).sum(-1)
    paired = (varying.sum(-1) < FEWEST_VARYING) & (between >= variance)
    variance = np.where(paired, between, variance)
    still = variance <= _ROUNDING * np.maximum.reduce([np.abs(side.mean).max(-1) for side in sides]) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        degrees = np.where(paired | still, n - 1, 1 / fourth - 2)
    trials = np.minimum.reduce([side.count.sum(-1) for side in sides])
    return Noise(mean, variance, np.maximum(degrees, 1.0), trials, n, paired, still)


@dataclass(frozen=True)
class IntervalArrays:
    """An interval, its sides by themselves: arrays (...)."""

    low: Floats
    high: Floats
    error: Floats  # standard error


def known(noise: Noise) -> Noise:
    """Of one trial each that passes or fails: the normal quantile, as in McNemar's test; t finds too little with few scenarios."""
    import numpy as np

    return replace(noise, degrees=np.full_like(noise.degrees, np.inf))


def plain(noise: Noise, confidence: float) -> IntervalArrays:
    """Student's t: what FAIL is decided by."""
    import numpy as np

    error = np.sqrt(noise.variance)
    reach = student_t_quantiles((1 + confidence) / 2, noise.degrees) * error
    return IntervalArrays(noise.mean - reach, noise.mean + reach, error)


def guarded(noise: Noise, limits: tuple[float, float], confidence: float) -> IntervalArrays:
    """With imaginary trials at both ends of the range: what PASS is decided by, beside `plain`.

    A hundred trials of which none failed do not prove that none ever fails. Agresti and Coull (1998) join imaginary trials to a
    proportion; here they join the mean of all scenarios.
    """
    import numpy as np

    low, high = limits
    weight = imaginary(confidence)
    everything = noise.trials + 2 * weight
    centre = (noise.mean * noise.trials + weight * (low + high)) / everything
    squares = noise.trials**2 * noise.variance + weight * ((high - centre) ** 2 + (centre - low) ** 2)
    error = np.sqrt(squares) / everything
    degrees = np.maximum(noise.degrees, noise.scenarios - 1)
    reach = student_t_quantiles((1 + confidence) / 2, degrees) * error
    return IntervalArrays(np.maximum(centre - reach, low), np.minimum(centre + reach, high), error)


def deciding(noise: Noise, limits: tuple[float, float], confidence: float) -> IntervalArrays:
    """Of a difference: PASS needs both lower bounds, FAIL the plain upper one; where nothing varies, that with imaginary trials."""
    import numpy as np

    one, other = plain(noise, confidence), guarded(noise, limits, confidence)
    return IntervalArrays(
        np.maximum(np.minimum(one.low, other.low), limits[0]),
        np.minimum(np.where(noise.still, np.maximum(one.high, other.high), one.high), limits[1]),
        one.error,
    )


def imaginary(confidence: float) -> float:
    """How many imaginary trials join at either end of the range."""
    return IMAGINARY * normal_quantile((1 + confidence) / 2) ** 2
