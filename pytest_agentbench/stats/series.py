"""Series of numbers in time order: array types, autocorrelation, block lengths, and variances of sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]
    Counts: TypeAlias = NDArray[np.int64]
    Mask: TypeAlias = NDArray[np.bool_]
    Integers: TypeAlias = NDArray[np.int64]


def unknown(values: NDArray[Any]) -> Mask:
    """Returns which values are NaN, without an import of numpy."""
    mask: Mask = values != values  # noqa: PLR0124 - NaN is the only value that is not equal to itself
    return mask


FEWEST_BLOCKS = 15  # fewest blocks: with fewer, intervals are too narrow under changing load (benchmarks/verdict-results.md)
_LONGER = 1.2  # factor for block lengths, because estimated autocorrelations are too small on average
_LEAST = 2.0  # smallest block length, in cube roots of n, if there are enough values
_CLEAR = 2.0  # standard errors above which an autocorrelation counts as different from 0
_NEGLIGIBLE = 1e-9  # difference, relative to the largest value, below which values are equal


def autocorrelation(values: Floats) -> float:
    """Returns the correlation of consecutive values, or 0 if the values do not vary."""
    return float(_correlations(values, 1)[1])


def effective_count(count: int, correlation: float) -> int:
    """Returns how many independent values have as much information about the mean, by an AR(1) process.

    It is `count` if the correlation does not clearly differ from 0.
    """
    if correlation <= _CLEAR / math.sqrt(max(count, 1)):
        return count
    return math.floor(count * (1 - correlation) / (1 + correlation))


def block_length(values: Floats) -> int:
    """Returns the number of values, in time order, that a block needs so that two blocks are nearly independent.

    It is the longest of three lengths, of which the first two are multiplied by `_LONGER`:

    - the optimal block length for an AR(1) process (Kunsch 1989), which is right if only load makes the values vary
    - the optimal block length by Politis and White (2004), which detects load below other noise
    - a length that depends only on the number of values, because estimates from few values miss correlation below the noise
    """
    count = len(values)
    optimum = max(_of_neighbours(autocorrelation(values), count), _of_correlogram(values))
    affordable = min(math.ceil(_LEAST * math.cbrt(count)), count // FEWEST_BLOCKS)
    return max(1, math.ceil(_LONGER * optimum - _NEGLIGIBLE), affordable)


def _of_neighbours(correlation: float, count: int) -> float:
    likeness = min(max(correlation, 0.0), 1 - _NEGLIGIBLE)
    return float((6 * likeness**2 / (1 - likeness**2) ** 2 * count) ** (1 / 3))


def _of_correlogram(values: Floats) -> float:
    """Returns the optimal length of moving blocks by Politis and White (2004, 3.2), or 0 if no autocorrelation is significant.

    It is also 0 for fewer than four values, and if the estimated spectrum is not positive. The method uses a flat-top window up to twice
    the last significant lag.
    """
    import numpy as np

    count = len(values)
    lags = min(count // 2 - 1, math.ceil(math.sqrt(count)) + 10)
    if lags < 1:
        return 0.0
    correlations = _correlations(values, lags)
    clear = np.abs(correlations) >= _CLEAR * math.sqrt(math.log10(count) / count)
    run = max(5, math.ceil(math.sqrt(math.log10(count))))  # insignificant lags in a row that end the correlogram
    last = next(lag for lag in range(lags + 1) if not clear[lag + 1 : lag + 1 + run].any())
    if last == 0:
        return 0.0
    within = min(2 * last, lags)
    lag = np.arange(1, within + 1)
    weighted = np.minimum(2 * (1 - lag / within), 1) * correlations[1 : within + 1]
    spectrum = 1 + 2 * weighted.sum()
    if spectrum <= 0:
        return 0.0
    return float((2 * (2 * (lag * weighted).sum()) ** 2 / (4 / 3 * spectrum**2) * count) ** (1 / 3))


def _correlations(values: Floats, lags: int) -> Floats:
    """Returns the autocorrelations of lags 0 to `lags`. Those after lag 0 are 0 if the values do not vary."""
    import numpy as np

    around = np.asarray(values, dtype=np.float64) - np.mean(values)
    total = float(around @ around)
    if total <= len(around) * (_NEGLIGIBLE * max(1.0, float(np.abs(values).max()))) ** 2:
        return np.asarray(np.arange(lags + 1) == 0, dtype=np.float64)
    return np.array([1.0, *((around[lag:] @ around[:-lag]) / total for lag in range(1, lags + 1))])


@dataclass(frozen=True)
class CorrelatedPairs:
    """Pairs of values that are not independent, each with a weight from 0 to 1."""

    one: Integers
    other: Integers
    weight: Floats

    @classmethod
    def of(cls, ranks: Sequence[Integers], length: int, groups: Sequence[Sequence[int]] = ()) -> CorrelatedPairs:
        """Returns the dependent pairs of values in one or several time orders. `ranks` has the rank of each value in each order.

        The weight of a pair is 1 - distance / `length`: of the moving blocks (`length` values long) that contain one value, so many contain
        the other. With it, the weighted sum of the products of pairs gives the variance of a mean by moving blocks (Kunsch 1989). A pair
        that is near in several orders counts once, with its largest weight. Two values of one group (a list of indices) have weight 1.
        """
        import numpy as np

        count = len(ranks[0])
        orders = [np.argsort(each, kind="stable") for each in ranks]
        near = [(order[lag:], order[:-lag], 1 - lag / length) for order in orders for lag in range(1, min(length, count))]
        same = np.array([pair for group in groups for pair in combinations(group, 2)], dtype=np.int64).reshape(-1, 2)
        parts = [*near, (same[:, 0], same[:, 1], 1.0)]
        keys = np.concatenate([np.minimum(one, other) * count + np.maximum(one, other) for one, other, _ in parts])
        weights = np.concatenate([np.full(len(one), weight) for one, _, weight in parts])
        known, place = np.unique(keys, return_inverse=True)
        nearest = np.zeros(len(known))
        np.maximum.at(nearest, place, weights)
        return cls(known // count, known % count, nearest)

    def variance(self, parts: Floats) -> float:
        """Returns the variance of a sum of terms that depend on each other as the pairs say, but at least that of independent terms.

        `parts` has the terms, one for each value, with mean 0.
        """
        alone = float(parts @ parts)
        return max(alone, alone + 2 * float((self.weight * parts[self.one] * parts[self.other]).sum()))
