"""Series in time order: autocorrelation, block lengths, and variances of sums."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.verdicts.latency import ar1
from pytest_agentbench.stats.series import FEWEST_BLOCKS, CorrelatedPairs, autocorrelation, block_length, effective_count


def test_blocks_grow_with_the_likeness_of_neighbours() -> None:
    """Blocks of independent values have the length that the number of values allows, and are longer with more correlation."""
    lengths = [block_length(ar1(1500, likeness, np.random.default_rng(1))) for likeness in (0.0, 0.5, 0.8, 0.95)]

    assert sorted(lengths) == lengths
    assert 23 == lengths[0], "two cube roots of 1500"
    assert lengths[3] > 1500 / FEWEST_BLOCKS


def test_load_below_other_noise_is_seen() -> None:
    """If half of the variance is slowly changing load, the whole correlogram leads to longer blocks than the correlation of neighbours
    alone.
    """
    random = np.random.default_rng(2)
    mixed = ar1(1500, 0.95, random) + random.normal(0, 1, 1500)

    assert block_length(mixed) > 2 * block_length(ar1(1500, autocorrelation(mixed), random))


@pytest.mark.parametrize("values", [[3.0] * 40, [], [1.0], [1.0, 2.0], [1.0, 2.0, 3.0]])
def test_too_little_to_correlate(values: list[float]) -> None:
    """Constant values have no autocorrelation, and few values cause no error."""
    assert block_length(np.array([1.0, *values])) >= 1


def test_the_effective_count() -> None:
    """Clearly correlated neighbours have less information than independent ones. Correlation within chance changes nothing."""
    assert (100, 33, 100) == (effective_count(100, 0.0), effective_count(100, 0.5), effective_count(100, 0.15))


def test_a_sum_varies_as_with_moving_blocks() -> None:
    """The variance is that of the sums of all blocks of a circle of values, as in a moving-blocks bootstrap."""
    values = ar1(400, 0.6, np.random.default_rng(4))
    values -= values.mean()
    sums = np.convolve(np.concatenate([values, values[:9]]), np.ones(10), "valid")
    own = CorrelatedPairs.of([np.arange(400)], 10).variance(values)

    assert float((sums**2).mean() * 40) == pytest.approx(own, rel=0.05)


def test_a_pair_counts_once() -> None:
    """Two equal orders count as one. With two different orders, each pair has the larger of its weights. Pairs of a group have weight 1."""
    parts = np.array([3.0, -1.0, -2.0])
    ranks = np.arange(3)

    assert CorrelatedPairs.of([ranks], 2).variance(parts) == CorrelatedPairs.of([ranks, ranks], 2).variance(parts) == 14
    assert 14.0 == CorrelatedPairs.of([ranks], 1).variance(parts)
    assert 14 + 2 * 2.0 == CorrelatedPairs.of([ranks], 1, [(1, 2)]).variance(parts)
