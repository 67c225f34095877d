"""Statistics of trials that pass or fail: McNemar's test, Tango's interval, pass@k and pass^k."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pytest_agentbench.gate.means import Interval, mean_interval
from pytest_agentbench.gate.special import normal_quantile


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


def pass_at(passed: int, trials: int, k: int) -> float | None:
    """P(at least one of k trials passes), without bias: 1 - C(trials - passed, k) / C(trials, k) (Chen et al. 2021, arXiv 2107.03374).

    None with fewer than k trials: it is not known then, and certainly not 1.
    """
    _check_passed(passed, trials, k)
    return 1 - math.comb(trials - passed, k) / math.comb(trials, k) if trials >= k else None


def pass_all(passed: int, trials: int, k: int) -> float | None:
    """pass^k, P(all of k trials pass), without bias: C(passed, k) / C(trials, k) (Yao et al. 2024, arXiv 2406.12045). None as above."""
    _check_passed(passed, trials, k)
    return math.comb(passed, k) / math.comb(trials, k) if trials >= k else None


@dataclass(frozen=True)
class Passes:
    """pass@k and pass^k of a suite, over scenarios."""

    k: int
    at: Interval  # pass@k
    all: Interval  # pass^k
    too_few: int  # scenarios with fewer than k measured trials, which are in neither


def passes(trials: Mapping[str, Sequence[bool]], k: int, confidence: float = 0.95) -> Passes:
    """pass@k and pass^k with intervals, of the measured trials of each scenario."""
    counts = [(sum(each), len(each)) for each in trials.values()]
    enough = [(passed, n) for passed, n in counts if n >= k]
    at = [value for passed, n in enough if (value := pass_at(passed, n, k)) is not None]
    every = [value for passed, n in enough if (value := pass_all(passed, n, k)) is not None]
    return Passes(k, mean_interval(at, None, confidence), mean_interval(every, None, confidence), len(counts) - len(enough))


def _check_passed(passed: int, trials: int, k: int) -> None:
    if not 0 <= passed <= trials or k < 1:
        raise ValueError(f"{passed} of {trials} trials passed, k = {k}: no such thing")
