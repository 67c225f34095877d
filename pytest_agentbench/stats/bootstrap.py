"""The bootstrap interval of a mean of values that have no limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_agentbench.stats.bounded import Clusters

if TYPE_CHECKING:
    from pytest_agentbench.stats.arrays import Floats

RESAMPLES = 4999  # the quantiles of 95 % are then whole ranks
_AT_ONCE = 2_000_000  # numbers in memory at a time
_NEGLIGIBLE = 1e-9  # a standard error below this, relative to the largest value, is rounding


@dataclass(frozen=True)
class BootstrapMean:
    """A mean with its bootstrap interval."""

    estimate: float
    low: float
    high: float
    error: float  # standard error


def percentile_t(
    values: Floats, clusters: Clusters, confidence: float = 0.95, seed: int = 0, resamples: int = RESAMPLES
) -> BootstrapMean | None:
    """The mean of n values without limits, and its bootstrap-t interval (Efron and Tibshirani 1993, 12.5; clusters are drawn whole).

    Of the bootstraps this is the one that keeps its promise for skewed values and few scenarios (benchmarks/verdict-results.md); BCa and
    plain percentiles are too narrow there. None where nothing bounds the mean: the values do not vary, or so few of them that resamples
    without any of these, whose error is 0, reach into the interval.
    """
    import numpy as np

    sizes = np.asarray(clusters.sizes, dtype=np.float64)
    totals = clusters.totals(values)
    count = len(sizes)
    mean, error = _ratio(totals[None, :], sizes[None, :])
    if count < 2 or error[0] <= _NEGLIGIBLE * np.abs(values).max():
        return None
    generator = np.random.default_rng(seed)
    studentised = []
    for size in _batches(resamples, count):
        drawn = generator.integers(0, count, (size, count))
        means, errors = _ratio(totals[drawn], sizes[drawn])
        with np.errstate(divide="ignore", invalid="ignore"):
            distance = (means - mean[0]) / errors
        studentised.append(np.nan_to_num(distance, nan=0.0, posinf=np.inf, neginf=-np.inf))
    everything = np.sort(np.concatenate(studentised))
    outside = (1 - confidence) / 2
    low, high = everything[_rank(outside, resamples)], everything[-1 - _rank(outside, resamples)]
    if not np.isfinite([low, high]).all():
        return None
    return BootstrapMean(float(mean[0]), float(mean[0] - high * error[0]), float(mean[0] - low * error[0]), float(error[0]))


def _ratio(totals: Floats, sizes: Floats) -> tuple[Floats, Floats]:
    """Mean and cluster-robust standard error of each row of (samples, clusters)."""
    import numpy as np

    count, n = totals.shape[-1], sizes.sum(-1)
    mean = totals.sum(-1) / n
    deviations = totals - mean[:, None] * sizes
    return mean, np.sqrt((deviations**2).sum(-1) * count / (count - 1)) / n


def _rank(outside: float, resamples: int) -> int:
    """How many of the ordered resamples lie outside on either side: the (B + 1) x outside-th is the bound (Efron and Tibshirani, 12.5)."""
    return max(0, int((resamples + 1) * outside + 1e-9) - 1)


def _batches(resamples: int, width: int) -> list[int]:
    size = max(1, _AT_ONCE // width)
    return [min(size, resamples - start) for start in range(0, resamples, size)]
