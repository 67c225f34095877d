"""Simulates verdicts of rules `of population`, in which scenarios or clusters are random, by the gate and by the former gate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from benchmarks.verdicts.populations import CHANGES, KINDS, Change, Floats, fade, rescue, trials
from pytest_agentbench.stats.mean_intervals import Clusters, bounded_mean, is_constant, robust_mean, tango_interval
from pytest_agentbench.stats.quantiles import normal_quantile

CONFIDENCE = 0.95
MARGINS = (0.05, 0.1, 0.2)
AT_ONCE = 2500  # simulated comparisons in memory


@dataclass(frozen=True)
class Cell:
    """A simulated setting: the kind of scores, and the number of scenarios, trials and clusters."""

    kind: str
    n: int
    trials: int
    sizes: tuple[int, ...] = ()  # of clusters, whose scenarios pass equally often; none: each scenario on its own

    @property
    def clusters(self) -> Clusters:
        return Clusters.of(np.repeat(np.arange(len(self.sizes)), self.sizes).tolist() if self.sizes else range(self.n))


@dataclass(frozen=True)
class Interval:
    """The bounds of the intervals of many simulated comparisons."""

    low: Floats
    high: Floats

    def passes(self, margin: float) -> float:
        return float((self.low > -margin).mean())

    def fails(self, margin: float) -> float:
        return float((self.high < -margin).mean())

    def covers(self, truth: float) -> float:
        return float(((self.low <= truth + 1e-12) & (self.high >= truth - 1e-12)).mean())


@dataclass(frozen=True)
class Outcome:
    """The results for a cell, as shares of its comparisons.

    Wrong verdicts are on true drops that equal the margin. Their shares are the worst of all changes and margins.
    """

    cell: Cell
    wrong_pass: float
    wrong_fail: float  # all fade, or some break
    rescued_fail: float  # all fade, and a few are repaired: FAIL does not hold there
    former_fail: float
    passes: tuple[float, float]  # with a margin of 0.05 and of 0.1 when nothing changed
    fails: tuple[float, float]  # with a margin of 0.1 when every scenario faded, by 0.2 in the mean; now and before


def simulate(cell: Cell, runs: int, seed: int) -> Outcome:
    random = np.random.default_rng(seed)
    rates = {(change, margin): judged(cell, runs, random, change, margin) for change, margin in product((*CHANGES, rescue), MARGINS)}
    same, faded = judged(cell, runs, random, fade, 0.0), judged(cell, runs, random, fade, 0.2)
    held = {key: found for key, found in rates.items() if key[0] in CHANGES[:2]}  # without churn, in which some are repaired
    return Outcome(
        cell,
        max(now.passes(margin) for (_, margin), (now, _) in rates.items()),
        max(now.fails(margin) for (_, margin), (now, _) in held.items()),
        max(now.fails(margin) for (change, margin), (now, _) in rates.items() if change is rescue),
        max(then.fails(margin) for (_, margin), (_, then) in held.items()),
        (same[0].passes(0.05), same[0].passes(0.1)),
        (faded[0].fails(0.1), faded[1].fails(0.1)),
    )


def judged(cell: Cell, runs: int, random: np.random.Generator, change: Change, drop: float) -> tuple[Interval, Interval]:
    """Simulates comparisons after a change. Returns the intervals of the gate and of the former gate."""
    batches = [*_batches(cell, runs, random, change, drop)]
    now, then = (
        Interval(np.concatenate([found.low for found in each]), np.concatenate([found.high for found in each]))
        for each in zip(*batches, strict=True)
    )
    return now, then


def _batches(cell: Cell, runs: int, random: np.random.Generator, change: Change, drop: float) -> Iterator[tuple[Interval, Interval]]:
    kind, clusters = KINDS[cell.kind], cell.clusters
    for start in range(0, runs, AT_ONCE):
        before = kind.rates(random, (min(AT_ONCE, runs - start), len(clusters.sizes)))
        after = change(random, before, drop, kind.mean)
        base, new = (trials(random, rates[:, clusters.codes], cell.trials, kind.parts) for rates in (before, after))
        yield gate(cell, new - base)


def gate(cell: Cell, differences: Floats) -> tuple[Interval, Interval]:
    """Returns intervals like `intervals.of_population`, and those of the former gate, which used one interval for both verdicts."""
    former = _guarded(cell, differences)
    plain = robust_mean(differences, cell.clusters, CONFIDENCE)
    high = np.where(is_constant(plain, differences), np.maximum(plain.high, former.high), plain.high)
    return Interval(np.minimum(plain.low, former.low), high), former


def _guarded(cell: Cell, differences: Floats) -> Interval:
    if cell.trials == 1 and not cell.sizes and KINDS[cell.kind].parts == 1:
        counts, where = np.unique(np.stack([(differences < 0).sum(-1), (differences > 0).sum(-1)]), axis=1, return_inverse=True)
        bounds = np.array([tango_interval(int(worse), int(better), cell.n, CONFIDENCE) for worse, better in counts.T])
        return Interval(bounds[where.ravel(), 0], bounds[where.ravel(), 1])
    bounds_t = bounded_mean(differences, cell.clusters, (-1.0, 1.0), CONFIDENCE)
    return Interval(bounds_t.low, bounds_t.high)


def pooled_z(base: Floats, new: Floats, count: int) -> Interval:
    """Returns the z interval of the difference of two proportions, as if all trials were independent and the scenarios different."""
    reach = normal_quantile((1 + CONFIDENCE) / 2) * np.sqrt((base * (1 - base) + new * (1 - new)) / count)
    return Interval(new - base - reach, new - base + reach)
