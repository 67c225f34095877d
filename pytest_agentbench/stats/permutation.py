"""Has anything changed? Each scenario's trials are dealt out anew to the two runs: exact where no scenario changed, without a variance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from pytest_agentbench.stats.binary import mcnemar

if TYPE_CHECKING:
    import numpy as np

    from pytest_agentbench.stats.arrays import Floats

DEALS = 9999
_WAYS = 1000  # to deal one scenario, up to which all are written down
_AT_ONCE = 2_000_000  # numbers in memory at a time


def worse(new: Sequence[Sequence[float]], base: Sequence[Sequence[float]], seed: int = 0, deals: int = DEALS) -> float:
    """One-sided p-value of "the mean over scenarios is lower"; higher is better, and each scenario has a trial in both runs.

    The share of deals whose mean is as low as the one measured; with one trial that passes or fails it is McNemar's exact test. A p-value
    of sampled deals is never 0 (Phipson and Smyth 2010).
    """
    import numpy as np

    both = [(one, other) for one, other in zip(new, base, strict=True) if len({*one, *other}) > 1]
    if len({abs(one[0] - other[0]) for one, other in both}) == 1 and all(len(one) == len(other) == 1 for one, other in both):
        fell = sum(one[0] < other[0] for one, other in both)
        return mcnemar(fell, len(both) - fell)
    if not both:
        return 1.0
    measured = math.fsum(math.fsum(one) / len(one) - math.fsum(other) / len(other) for one, other in both)
    bound = measured + 1e-9 * max(1.0, *(abs(score) for pair in both for scores in pair for score in scores))
    random = np.random.default_rng(seed)
    size = max(1, _AT_ONCE // max(len(one) + len(other) for one, other in both))
    low = 0
    for start in range(0, deals, size):
        dealt = np.zeros(min(size, deals - start))
        for one, other in both:
            dealt += _dealt(random, one, other, len(dealt))
        low += int((dealt <= bound).sum())
    return (1 + low) / (1 + deals)


def _dealt(random: np.random.Generator, new: Sequence[float], base: Sequence[float], deals: int) -> Floats:
    """So many differences of the means, of one scenario."""
    import numpy as np

    pool = np.array([*new, *base])
    if math.comb(len(pool), len(new)) <= _WAYS:
        first = pool[np.array([*combinations(range(len(pool)), len(new))])].sum(-1)
        first = first[random.integers(0, len(first), deals)]
    else:
        first = random.permuted(np.broadcast_to(pool, (deals, len(pool))), axis=1)[:, : len(new)].sum(-1)
    return np.asarray(first / len(new) - (pool.sum() - first) / len(base))
