"""Series of numbers: types of their arrays, how alike neighbours in time are, how long blocks have to be, and how much a sum varies."""

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


FEWEST_BLOCKS = 15  # with fewer an interval is too narrow where load comes and goes (benchmarks/verdict-results.md)
_LONGER = 1.2  # than the rules of thumb say: estimated autocorrelations are too small on average
_LEAST = 2.0  # blocks have so many cube roots of n values where there are enough for that, whatever the estimate
_CLEAR = 2.0  # standard errors from which an autocorrelation is told from none
_NEGLIGIBLE = 1e-9  # values that differ by less, relative to the largest one, are equal


def autocorrelation(values: Floats) -> float:
    """Between neighbours; 0 of values that do not vary."""
    return float(_correlations(values, 1)[1])


def effective_count(count: int, correlation: float) -> int:
    """How many independent values tell as much of a mean, where neighbours are clearly alike (of an AR(1) process)."""
    if correlation <= _CLEAR / math.sqrt(max(count, 1)):
        return count
    return math.floor(count * (1 - correlation) / (1 + correlation))


def block_length(values: Floats) -> int:
    """How many of these values in time order a block has to hold, so that two blocks are nearly independent.

    The longest of three: the optimum for an AR(1) process (Kunsch 1989), which is right where load alone makes the values vary; that of
    Politis and White (2004), which sees load below other noise; and, as estimates miss what is below the noise of few values, what there
    are values for.
    """
    count = len(values)
    optimum = max(_of_neighbours(autocorrelation(values), count), _of_correlogram(values))
    affordable = min(math.ceil(_LEAST * math.cbrt(count)), count // FEWEST_BLOCKS)
    return max(1, math.ceil(_LONGER * optimum - _NEGLIGIBLE), affordable)


def _of_neighbours(correlation: float, count: int) -> float:
    likeness = min(max(correlation, 0.0), 1 - _NEGLIGIBLE)
    return float((6 * likeness**2 / (1 - likeness**2) ** 2 * count) ** (1 / 3))


def _of_correlogram(values: Floats) -> float:
    """Politis and White 2004, 3.2, for moving blocks: a flat-top window up to twice the last lag that is told from none."""
    import numpy as np

    count = len(values)
    lags = min(count // 2 - 1, math.ceil(math.sqrt(count)) + 10)
    if lags < 1:
        return 0.0
    correlations = _correlations(values, lags)
    clear = np.abs(correlations) >= _CLEAR * math.sqrt(math.log10(count) / count)
    run = max(5, math.ceil(math.sqrt(math.log10(count))))  # so many lags in a row that are not clear end the correlogram
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
    """Of lags 0 to `lags`; those after 0 are 0 where nothing varies."""
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
        """Of values in one or several orders of time, `ranks` being the places of each in them.

        In blocks of `length` that move along the order, two values stand together in a share 1 - distance / length of the blocks: the
        variance of a mean by moving blocks is the sum of the pairs' products with that weight (Kunsch 1989). A pair that is near in
        several orders counts once, where it is nearest. Values of one group are never independent.
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
        """Of a sum, from its parts, whose mean is 0; never less than if they were independent."""
        alone = float(parts @ parts)
        return max(alone, alone + 2 * float((self.weight * parts[self.one] * parts[self.other]).sum()))
