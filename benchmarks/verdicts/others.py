"""Simulates other verdicts than comparisons of scores: means compared with a threshold, and values without an upper limit."""

from __future__ import annotations

import math

import numpy as np

from benchmarks.verdicts.kinds import Floats
from benchmarks.verdicts.suite import CONFIDENCE, Cell
from pytest_agentbench.stats.mean_intervals import Clusters, percentile_t
from pytest_agentbench.stats.means import RunTrials, guarded, noise, plain
from pytest_agentbench.stats.quantiles import normal_quantile, student_t_quantile

Z = normal_quantile((1 + CONFIDENCE) / 2)
RESAMPLES = 399
AT_ONCE = 1000  # simulated runs in memory
METHODS = ("t", "percentile", "BCa", "percentile-t")


def limits(cell: Cell, runs: int, seed: int) -> tuple[float, float]:
    """Returns the shares of PASS and FAIL if the threshold is the true mean, so that both verdicts are wrong."""
    random, passes, fails = np.random.default_rng(seed), 0, 0
    for start in range(0, runs, AT_ONCE):
        means = cell.scores.means(random, (min(AT_ONCE, runs - start), cell.n))
        found = noise(RunTrials.of(cell.scores.trials(random, means, cell.trials)))
        one, other = plain(found, CONFIDENCE), guarded(found, (0.0, 1.0), CONFIDENCE)
        passes += int((np.minimum(one.low, other.low) > means.mean(-1)).sum())
        fails += int((np.maximum(one.high, other.high) < means.mean(-1)).sum())
    return passes / runs, fails / runs


def unbounded(n: int, sigma: float, runs: int, seed: int) -> dict[str, float]:
    """Returns how often the interval of each method contains the true mean, for n lognormal values (0, sigma) such as costs."""
    random, truth = np.random.default_rng(seed), math.exp(sigma**2 / 2)
    covered = dict.fromkeys(METHODS, 0)
    clusters = Clusters.of(range(n))
    for run in range(runs):
        values = random.lognormal(0, sigma, n)
        found = percentile_t(values, clusters, CONFIDENCE, run, RESAMPLES)
        assert found is not None, "lognormal values vary"
        reach = student_t_quantile((1 + CONFIDENCE) / 2, n - 1) * found.error
        means = np.sort(random.choice(values, (RESAMPLES, n)).mean(-1))
        intervals = (
            (found.estimate - reach, found.estimate + reach),
            tuple(np.quantile(means, [0.025, 0.975])),
            bca(values, means),
            (found.low, found.high),
        )
        for method, (low, high) in zip(METHODS, intervals, strict=True):
            covered[method] += low <= truth <= high
    return {method: count / runs for method, count in covered.items()}


def bca(values: Floats, means: Floats) -> tuple[float, float]:
    """Returns the bias-corrected and accelerated bootstrap interval of a mean (Efron and Tibshirani 1993, 14.3).

    `means` are the sorted means of bootstrap samples.
    """
    deviations = values - values.mean()
    acceleration = float((deviations**3).sum() / (6 * (deviations**2).sum() ** 1.5))
    bias = normal_quantile(min(max(float((means < values.mean()).mean()), 1e-3), 1 - 1e-3))
    low, high = (_normal(bias + (bias + z) / (1 - acceleration * (bias + z))) for z in (-Z, Z))
    return float(np.quantile(means, low)), float(np.quantile(means, high))


def _normal(z: float) -> float:
    return math.erfc(-z / math.sqrt(2)) / 2
