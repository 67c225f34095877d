"""Cells of the table: thousands of simulated comparisons each, judged by the gate's own functions and by two simpler ones."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from pytest_agentbench.gate.binary import tango_interval
from pytest_agentbench.gate.bounded import Clusters, bounded_mean
from pytest_agentbench.gate.power import Design
from pytest_agentbench.gate.special import normal_quantile
from tests.benchmarks.verdicts.suites import CHANGES, KINDS, Change, Floats, fade, trials

CONFIDENCE = 0.95
MARGINS = (0.05, 0.1, 0.2)
AT_ONCE = 2500  # simulated comparisons in memory
GATE, THRESHOLD, POOLED = range(3)


@dataclass(frozen=True)
class Cell:
    """A suite to simulate."""

    kind: str
    n: int
    trials: int
    sizes: tuple[int, ...] = ()  # of clusters, whose scenarios pass equally often; none: each scenario on its own

    @property
    def clusters(self) -> Clusters:
        return Clusters.of(np.repeat(np.arange(len(self.sizes)), self.sizes).tolist() if self.sizes else range(self.n))


@dataclass(frozen=True)
class Interval:
    """Bounds of many simulated comparisons."""

    low: Floats
    high: Floats

    def passes(self, margin: float) -> float:
        return float((self.low > -margin).mean())

    def fails(self, margin: float) -> float:
        return float((self.high < -margin).mean())

    def covers(self, truth: float) -> float:
        return float(((self.low <= truth + 1e-12) & (self.high >= truth - 1e-12)).mean())


@dataclass(frozen=True)
class Rates:
    """Shares of the simulated comparisons, over all changes and margins."""

    wrong_pass: float  # PASS although the true drop is the margin: the most
    false_alarm: float  # FAIL although nothing changed: the most
    coverage: float  # of the true difference: the least


@dataclass(frozen=True)
class Outcome:
    """What came of a cell."""

    cell: Cell
    gate: Rates
    threshold: Rates
    pooled: Rates
    passes: tuple[float, float]  # P(PASS) with a margin of 0.05 and of 0.1 when nothing changed
    fails: float  # P(FAIL) with a margin of 0.1 when every scenario faded, by 0.2 in the mean
    theory: tuple[float, float, float] | None  # the three above; None for clusters


def simulate(cell: Cell, runs: int, seed: int) -> Outcome:
    """Each kind of change at each margin, and no change, `runs` times."""
    random = np.random.default_rng(seed)
    dropped = {(change, margin): judged(cell, runs, random, change, margin) for change, margin in product(CHANGES, MARGINS)}
    same, faded = judged(cell, runs, random, fade, 0.0), judged(cell, runs, random, fade, 0.2)
    gate, threshold, pooled = (
        Rates(
            wrong_pass=max(found[which].passes(margin) for (_, margin), found in dropped.items()),
            false_alarm=max(same[which].fails(margin) for margin in MARGINS),
            coverage=min(same[which].covers(0.0), *(found[which].covers(-margin) for (_, margin), found in dropped.items())),
        )
        for which in (GATE, THRESHOLD, POOLED)
    )
    passes = same[GATE].passes(0.05), same[GATE].passes(0.1)
    return Outcome(cell, gate, threshold, pooled, passes, faded[GATE].fails(0.1), None if cell.sizes else theory(cell, random))


def judged(cell: Cell, runs: int, random: np.random.Generator, change: Change, drop: float) -> tuple[Interval, ...]:
    """The intervals of gate, naive threshold and pooled trials."""
    batches = [batch(cell, min(AT_ONCE, runs - start), random, change, drop) for start in range(0, runs, AT_ONCE)]
    return tuple(
        Interval(np.concatenate([found.low for found in each]), np.concatenate([found.high for found in each]))
        for each in zip(*batches, strict=True)
    )


def batch(cell: Cell, runs: int, random: np.random.Generator, change: Change, drop: float) -> tuple[Interval, ...]:
    kind, clusters = KINDS[cell.kind], cell.clusters
    before = kind.rates(random, (runs, len(clusters.sizes)))
    after = change(random, before, drop, kind.mean)
    base, new = (trials(random, rates[:, clusters.codes], cell.trials, kind.parts) for rates in (before, after))
    difference = (new - base).mean(-1)
    return gate(cell, new - base), Interval(difference, difference), pooled_z(base.mean(-1), new.mean(-1), cell.n * cell.trials)


def gate(cell: Cell, differences: Floats) -> Interval:
    """As `paired.compare` chooses."""
    if cell.trials == 1 and not cell.sizes and KINDS[cell.kind].parts == 1:
        counts, where = np.unique(np.stack([(differences < 0).sum(-1), (differences > 0).sum(-1)]), axis=1, return_inverse=True)
        bounds = np.array([tango_interval(int(worse), int(better), cell.n, CONFIDENCE) for worse, better in counts.T])
        return Interval(bounds[where.ravel(), 0], bounds[where.ravel(), 1])
    bounds_t = bounded_mean(differences, cell.clusters, (-1.0, 1.0), CONFIDENCE)
    return Interval(bounds_t.low, bounds_t.high)


def pooled_z(base: Floats, new: Floats, count: int) -> Interval:
    """The z interval of two proportions, as if all trials were independent and the runs had nothing in common."""
    reach = normal_quantile((1 + CONFIDENCE) / 2) * np.sqrt((base * (1 - base) + new * (1 - new)) / count)
    return Interval(new - base - reach, new - base + reach)


def theory(cell: Cell, random: np.random.Generator) -> tuple[float, float, float]:
    """P(PASS) and P(FAIL) as `gate.power` plans them, from the suite's true variances."""
    kind = KINDS[cell.kind]
    rates = kind.rates(random, (200_000,))
    faded = fade(random, rates, 0.2, kind.mean)
    within, after = (float((each * (1 - each)).mean()) / kind.parts for each in (rates, faded))
    same = Design(cell.n, cell.trials, within)
    fallen = Design(cell.n, cell.trials, (within + after) / 2, float((faded - rates).var()))
    return same.pass_probability(0.05), same.pass_probability(0.1), fallen.fail_probability(0.1, -0.2)
