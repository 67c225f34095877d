"""Intervals for the mean of scores that cannot leave a range, which hold where Student's t does not: near 0 and 1, and without variation.

Twenty scenarios of which none changed have no variation, and t makes certainty of it. Here the data are joined by imaginary scenarios,
some at either end of the range, as Agresti and Coull (1998) do for a proportion and Bonett and Price (2012) for a paired difference of
proportions; then comes the usual t interval. `docs/verdict-results.md` shows what that costs and what it saves.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pytest_agentbench.gate.special import normal_quantile, student_t_quantile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]

#: Imaginary scenarios at either end, in squares of the normal quantile: 1.54 for 95 %. Agresti and Coull have 0.5 (the centre of
#: Wilson's interval), Bonett and Price 0.26 (one). With 0.4 a suite that breaks in whole scenarios, which is the worst case because
#: trials do not help against it, passes wrongly with probability 1 - confidence at most; with 0.26 it is more (tests/gate/test_bounded.py).
IMAGINARY = 0.4

#: Effective clusters below which nothing is decided. "Few" begins between 20 and 50 clusters of equal size (Cameron and Miller 2015,
#: J. Human Resources 50(2), VI) for normal quantiles; with those of t for the effective number the table holds from 10.
FEWEST_CLUSTERS = 10


@dataclass(frozen=True)
class Clusters:
    """Which scenarios belong together. Without clusters each scenario is its own."""

    codes: tuple[int, ...]  # of each scenario, from 0
    sizes: tuple[int, ...]  # scenarios of each cluster

    @classmethod
    def of(cls, names: Sequence[Hashable]) -> Clusters:
        numbers: dict[Hashable, int] = {}
        codes = tuple(numbers.setdefault(name, len(numbers)) for name in names)
        sizes = [0] * len(numbers)
        for code in codes:
            sizes[code] += 1
        return cls(codes, tuple(sizes))

    @property
    def single(self) -> bool:
        return all(size == 1 for size in self.sizes)

    @property
    def effective(self) -> float:
        """How many clusters of equal size tell as much: n^2 / sum of size^2 (Kish 1965)."""
        return sum(self.sizes) ** 2 / sum(size**2 for size in self.sizes)

    def totals(self, values: Floats) -> Floats:
        """(..., scenarios) -> (..., clusters): the sum of each cluster."""
        import numpy as np

        if self.single:
            return values
        order = np.argsort(self.codes, kind="stable")
        starts = np.concatenate(([0], np.cumsum(self.sizes)[:-1]))
        return np.asarray(np.add.reduceat(values[..., order], starts, axis=-1))


@dataclass(frozen=True)
class Bounds:
    """A mean and its interval, for one sample or for many at once; arrays have the shape of the values without the last axis."""

    mean: Floats
    low: Floats
    high: Floats
    error: Floats  # standard error, imaginary scenarios included
    degrees: float  # of Student's t


def bounded_mean(values: Floats, clusters: Clusters, limits: tuple[float, float], confidence: float = 0.95) -> Bounds:
    """The mean of one value per scenario, (..., n) of them within the limits, and a two-sided interval for it.

    With clusters the imaginary ones are whole clusters of the size that scenarios find themselves in on average, the standard error is
    cluster-robust (Liang and Zeger 1986, with C/(C - 1)), and t has one degree less than there are effective clusters.
    Raises ValueError for fewer than two effective clusters.
    """
    import numpy as np

    low, high = limits
    n, effective = values.shape[-1], clusters.effective
    if effective < 2:
        raise ValueError(f"{effective:.3g} effective clusters have no interval")
    size = n / effective
    weight = imaginary(confidence)
    total = n + 2 * weight * size
    sums = clusters.totals(values)
    centre = (sums.sum(-1) + weight * size * (low + high)) / total
    deviations = sums - centre[..., None] * np.asarray(clusters.sizes)
    squares = (deviations**2).sum(-1) + weight * size**2 * ((low - centre) ** 2 + (high - centre) ** 2)
    count = effective + 2 * weight
    error = np.sqrt(squares * count / (count - 1)) / total
    reach = student_t_quantile((1 + confidence) / 2, effective - 1) * error
    return Bounds(values.mean(-1), np.maximum(centre - reach, low), np.minimum(centre + reach, high), error, effective - 1)


def imaginary(confidence: float) -> float:
    """How many imaginary scenarios join at either end of the range."""
    return IMAGINARY * normal_quantile((1 + confidence) / 2) ** 2
