"""Intervals for the mean of scores that cannot leave a range, which hold where Student's t does not: near 0 and 1, and without variation.

Twenty scenarios of which none changed have no variation, and t makes certainty of it. Here the data are joined by imaginary scenarios,
some at either end of the range, as Agresti and Coull (1998) do for a proportion and Bonett and Price (2012) for a paired difference of
proportions; then comes the usual t interval. `benchmarks/verdict-results.md` shows what that costs and what it saves.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pytest_agentbench.stats.special import normal_quantile, student_t_quantile

if TYPE_CHECKING:
    from pytest_agentbench.stats.arrays import Floats

Number = TypeVar("Number", float, "Floats")

#: Imaginary scenarios at either end, in squares of the normal quantile: 1.54 for 95 %. Agresti and Coull have 0.5 (the centre of
#: Wilson's interval), Bonett and Price 0.26 (one). With 0.4 a suite that breaks in whole scenarios, which is the worst case because
#: trials do not help against it, passes wrongly with probability 1 - confidence at most; with 0.26 more (tests/stats/test_bounded.py).
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

    @classmethod
    def of_scenarios(cls, clusters: Mapping[str, str | None]) -> Clusters:
        """Of scenarios by their ids, in this order; one that names no cluster is one of its own."""
        return cls.of([(cluster is None, cluster or scenario) for scenario, cluster in clusters.items()])

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
    error: Floats  # standard error; of `bounded_mean` with the imaginary scenarios
    degrees: float  # of Student's t


def bounded_mean(values: Floats, clusters: Clusters, limits: tuple[float, float], confidence: float = 0.95) -> Bounds:
    """The mean of one value per scenario, (..., n) of them within the limits, and a two-sided interval for it. See `adjusted`."""
    import numpy as np

    totals = clusters.totals(values)
    centre, error = adjusted(
        totals.sum(-1), (totals**2).sum(-1), (totals * np.asarray(clusters.sizes)).sum(-1), clusters, limits, confidence
    )
    reach = student_t_quantile((1 + confidence) / 2, clusters.effective - 1) * error
    return Bounds(
        values.mean(-1), np.maximum(centre - reach, limits[0]), np.minimum(centre + reach, limits[1]), error, clusters.effective - 1
    )


def adjusted(
    total: Number, squares: Number, products: Number, clusters: Clusters, limits: tuple[float, float], confidence: float
) -> tuple[Number, Number]:
    """Centre and standard error of the interval, from sums over clusters: of their totals, those squared, and total x size.

    The imaginary scenarios are whole clusters of the size that a scenario finds itself in on average, the standard error is cluster-robust
    (Liang and Zeger 1986, with C/(C - 1)), and t has one degree less than there are effective clusters.
    Raises ValueError for a single cluster.
    """
    effective = clusters.effective
    if effective <= 1:
        raise ValueError(f"{effective:.3g} effective clusters have no interval")
    low, high = limits
    n, weight = len(clusters.codes), imaginary(confidence)
    size = n / effective
    everything = n + 2 * weight * size
    centre = (total + weight * size * (low + high)) / everything
    variation = squares - 2 * centre * products + centre**2 * n * size
    variation = variation + weight * size**2 * ((low - centre) ** 2 + (high - centre) ** 2)
    count = effective + 2 * weight
    return centre, (variation * count / (count - 1)) ** 0.5 / everything


def imaginary(confidence: float) -> float:
    """How many imaginary scenarios join at either end of the range."""
    return IMAGINARY * normal_quantile((1 + confidence) / 2) ** 2
