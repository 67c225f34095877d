"""Trials that pass or fail: McNemar's test, Tango's interval of a difference, Clopper and Pearson's and Wilson's of a rate."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from pytest_agentbench.stats.special import binomial_at_most, normal_quantile


def mcnemar(worse: int, better: int) -> float:
    """One-sided p-value of "the new one is worse", of pairs that passed before and fail now, and the other way round; one trial each.

    P(X >= worse) for X ~ Binomial(worse + better, 1/2) (McNemar 1947); 1 if no pair differs.
    """
    if worse < 0 or better < 0:
        raise ValueError(f"there are no {min(worse, better)} pairs")
    pairs = worse + better
    return sum(math.comb(pairs, x) for x in range(worse, pairs + 1)) / (1 << pairs)


@functools.lru_cache(maxsize=4096)
def tango_interval(worse: int, better: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Interval for P(better) - P(worse) of n pairs with one trial on each side (Tango 1998, Statistics in Medicine 17:891, formula 13).

    Asymmetric where it has to be, and no point without pairs that differ: it is then -+ z^2 / (n + z^2).
    """
    if n < 1 or worse < 0 or better < 0 or worse + better > n or not 0 < confidence < 1:
        raise ValueError(f"no interval of {worse} worse and {better} better of {n} pairs with confidence {confidence}")
    z = normal_quantile((1 + confidence) / 2)
    observed = (better - worse) / n
    score = functools.partial(_tango_score, worse, better, n)
    low = _crossing(lambda delta: score(delta) > z, -1.0, observed)
    high = _crossing(lambda delta: score(delta) >= -z, observed, 1.0)
    return low, high


def _tango_score(worse: int, better: int, n: int, delta: float) -> float:
    """How many standard errors the observed difference lies above delta; the variance is that of the likeliest table with this delta."""
    linear = -better - worse + (2 * n - better + worse) * delta
    rest = -worse * delta * (1 - delta)
    likeliest = (math.sqrt(max(linear**2 - 8 * n * rest, 0.0)) - linear) / (4 * n)  # P(worse)
    variance = n * (2 * likeliest + delta * (1 - delta))
    distance = better - worse - n * delta
    if variance <= 0:
        return 0.0 if distance == 0 else math.copysign(math.inf, distance)
    return distance / math.sqrt(variance)


def _crossing(above: Callable[[float], bool], low: float, high: float) -> float:
    """Where a predicate that holds at first ends to hold, by bisection to 1e-12."""
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (middle, high) if above(middle) else (low, middle)
    return (low + high) / 2


@functools.lru_cache(maxsize=4096)
def binomial_interval(passed: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Interval for the rate of trials that pass, exact and so rather too wide (Clopper and Pearson 1934, Biometrika 26:404)."""
    if not 0 <= passed <= trials or trials < 1 or not 0 < confidence < 1:
        raise ValueError(f"no interval of {passed} of {trials} trials with confidence {confidence}")
    tail = (1 - confidence) / 2
    low = _crossing(lambda rate: 1 - binomial_at_most(passed - 1, trials, rate) < tail, 0.0, 1.0) if passed else 0.0
    high = _crossing(lambda rate: binomial_at_most(passed, trials, rate) >= tail, 0.0, 1.0) if passed < trials else 1.0
    return low, high


def wilson_interval(rate: float, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Interval for the rate of trials that pass, right on average over rates (Wilson 1927, JASA 22:209), and narrower than the exact one.

    The rate need not be a whole number of trials: it may be the mean of questions that were asked several times each.
    """
    if not 0 <= rate <= 1 or trials < 1 or not 0 < confidence < 1:
        raise ValueError(f"no interval of the rate {rate} of {trials} trials with confidence {confidence}")
    z = normal_quantile((1 + confidence) / 2)
    middle, weight = rate + z**2 / (2 * trials), 1 + z**2 / trials
    reach = z * math.sqrt(rate * (1 - rate) / trials + z**2 / (4 * trials**2))
    return max(0.0, (middle - reach) / weight), min(1.0, (middle + reach) / weight)
