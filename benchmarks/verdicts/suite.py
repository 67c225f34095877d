"""Simulates verdicts of rules `of suite`, by the gate, by the former gate, and by an oracle that knows the variance."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from benchmarks.verdicts.kinds import CHANGES, KINDS, Change, Changing, Floats, Kind, changed, crash, fade
from benchmarks.verdicts.population import Interval
from pytest_agentbench.stats.mean_intervals import Clusters, bounded_mean, tango_interval
from pytest_agentbench.stats.means import RunTrials, decision_bounds, known, noise, plain
from pytest_agentbench.stats.paired import ScenarioSample, compare, worse
from pytest_agentbench.stats.quantiles import normal_quantile

CONFIDENCE = 0.95
MARGINS = (0.02, 0.05, 0.1)
DEALS = 1999
AT_ONCE = 1_500_000  # trials in memory
Z, Z80 = normal_quantile(0.975), normal_quantile(0.8)
SEEN = 60  # comparisons of which the gate's own sentence about its power is averaged


@dataclass(frozen=True)
class Cell:
    """A simulated setting: the kind of scores, the number of scenarios, and the trials of each in the run and in the baseline."""

    kind: str
    n: int
    trials: int
    base_trials: int

    @property
    def scores(self) -> Kind:
        return KINDS[self.kind]

    @property
    def rollouts(self) -> int:
        """Number of rollouts of the run or the baseline, whichever has fewer."""
        return self.n * min(self.trials, self.base_trials)

    @property
    def shares(self) -> float:
        return 1 / self.trials + 1 / self.base_trials


@dataclass(frozen=True)
class Drawn:
    """The scores of many simulated comparisons."""

    new: Floats  # (runs, scenarios, trials)
    base: Floats
    oracle: Floats  # (runs,): the true standard error of the difference

    @property
    def difference(self) -> Floats:
        """The difference of the means of run and baseline, for each comparison."""
        return np.asarray(self.new.mean(-1).mean(-1) - self.base.mean(-1).mean(-1))


def drawn(cell: Cell, runs: int, random: np.random.Generator, change: Changing | None, drop: float) -> Iterator[Drawn]:
    """Yields simulated comparisons in batches. Each comparison has its own random suite."""
    size = max(1, AT_ONCE // (cell.n * (cell.trials + cell.base_trials)))
    for start in range(0, runs, size):
        means = cell.scores.means(random, (min(size, runs - start), cell.n))
        after = change(random, means, drop) if change else Change(means, np.zeros((len(means), 1)))
        base = cell.scores.trials(random, means, cell.base_trials)
        new = changed(cell.scores, random, after, cell.trials)
        variance = cell.scores.variance(means) / cell.base_trials + cell.scores.variance(after.means) / cell.trials
        apart = (after.means - means).var(-1) if min(cell.trials, cell.base_trials) == 1 else 0.0
        yield Drawn(new, base, np.asarray(np.sqrt((variance.mean(-1) + apart) / cell.n)))


def gate(cell: Cell, batch: Drawn, confidence: float = CONFIDENCE) -> Interval:
    """Returns the intervals of many comparisons, computed like `intervals.of_suite`."""
    found = noise(RunTrials.of(batch.new), RunTrials.of(batch.base))
    found = known(found) if passes_or_fails(cell) else found
    bounds = decision_bounds(found, (-1.0, 1.0), confidence)
    if not passes_or_fails(cell):
        return Interval(bounds.low, bounds.high)
    tango = tango_of(batch)
    low = np.minimum(plain(found, confidence).low, tango.low)
    return Interval(low, np.where(found.is_constant, np.maximum(bounds.high, tango.high), bounds.high))


def former(cell: Cell, batch: Drawn) -> Interval:
    """Returns the intervals of the former gate, which added imaginary scenarios and always asked about the population."""
    if passes_or_fails(cell):
        return tango_of(batch)
    bounds = bounded_mean(batch.new.mean(-1) - batch.base.mean(-1), Clusters.of(range(cell.n)), (-1.0, 1.0), CONFIDENCE)
    return Interval(bounds.low, bounds.high)


def passes_or_fails(cell: Cell) -> bool:
    return cell.trials == cell.base_trials == 1 and cell.scores.deviation is None


def tango_of(batch: Drawn) -> Interval:
    differences = (batch.new - batch.base)[..., 0]
    counts, where = np.unique(np.stack([(differences < 0).sum(-1), (differences > 0).sum(-1)]), axis=1, return_inverse=True)
    bounds = np.array([tango_interval(int(down), int(up), differences.shape[-1], CONFIDENCE) for down, up in counts.T])
    return Interval(bounds[where.ravel(), 0], bounds[where.ravel(), 1])


def fails_without_margin(cell: Cell, batch: Drawn, interval: Interval, confidence: float = CONFIDENCE) -> NDBool:
    """Returns which comparisons FAIL with a margin of 0: by the interval or by the permutation test, which runs only if it can decide."""
    fails = interval.high < 0
    low = np.concatenate([batch.new, batch.base], -1).var(-1, ddof=1).mean(-1) * cell.shares / cell.n
    risk = (1 - confidence) / 2
    for at in np.flatnonzero(~fails & (batch.difference < -0.87 * normal_quantile(1 - risk) * np.sqrt(low))):
        fails[at] = worse(batch.new[at].tolist(), batch.base[at].tolist(), int(at), DEALS) <= risk
    return fails


NDBool = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


@dataclass(frozen=True)
class Wrong:
    """Shares of wrong verdicts if the true drop equals the margin: the worst of all changes and margins, with their names."""

    passes: float
    fails: float
    passes_at: str
    fails_at: str


@dataclass(frozen=True)
class Power:
    """Shares of right verdicts. Each tuple of three has those of the oracle, the gate and the former gate."""

    margin: float  # with which the oracle passes 80 % of equal runs
    passes: tuple[float, float, float]
    wide: tuple[float, float]  # a wider margin, where that one is below the floor, and the gate's share of PASS with it
    fails: tuple[float, float, float]  # the true drop is that margin, the rule's is 0
    drop: float  # of which the gate says that such a run finds it 4 times out of 5
    found: float


@dataclass(frozen=True)
class Outcome:
    cell: Cell
    now: Wrong
    then: Wrong
    power: Power


def changes_of(cell: Cell) -> list[Changing]:
    """Returns the changes to simulate for a cell. If scores are only 0 or 1, `crash` is left out, because it equals `fade`."""
    return [change for change in CHANGES if not (cell.scores.deviation is None and change is crash)]


def simulate(cell: Cell, runs: int, seed: int) -> Outcome:
    random = np.random.default_rng(seed)
    shares: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for change, margin in product(changes_of(cell), MARGINS):
        if margin * cell.n < 0.5 * (change in CHANGES[2:]):
            continue
        counts = np.zeros(4)
        for batch in drawn(cell, runs, random, change, margin):
            for at, method in ((0, gate), (2, former)):
                interval = method(cell, batch)
                counts[at] += (interval.low > -margin).sum()
                counts[at + 1] += (interval.high < -margin).sum()
        name = f"{change.__name__.replace('_', ' ')} {margin:g}"
        shares[name, "now"], shares[name, "then"] = [(counts[0] / runs, counts[1] / runs)], [(counts[2] / runs, counts[3] / runs)]
    counts = np.zeros(2)
    for batch in drawn(cell, runs, random, None, 0.0):
        counts += (fails_without_margin(cell, batch, gate(cell, batch)).sum(), (former(cell, batch).high < 0).sum())
    shares["same 0", "now"], shares["same 0", "then"] = [(0.0, counts[0] / runs)], [(0.0, counts[1] / runs)]
    now, then = (_worst({name: each[0] for (name, when), each in shares.items() if when == wanted}) for wanted in ("now", "then"))
    return Outcome(cell, now, then, powers(cell, runs, random))


def _worst(shares: dict[str, tuple[float, float]]) -> Wrong:
    passes, fails = (max(shares, key=lambda name, at=at: shares[name][at]) for at in (0, 1))  # type: ignore[misc]
    return Wrong(shares[passes][0], shares[fails][1], passes, fails)


def true_error(cell: Cell, random: np.random.Generator) -> float:
    """Returns the average standard error of the difference between two runs of a suite of this cell."""
    means = cell.scores.means(random, (200, cell.n))
    return math.sqrt(float(cell.scores.variance(means).mean()) * cell.shares / cell.n)


def powers(cell: Cell, runs: int, random: np.random.Generator) -> Power:
    error = true_error(cell, random)
    margin = (Z + Z80) * error
    wide = 1.1 * math.hypot(margin, 3.5 / cell.rollouts)
    same = np.zeros(4)
    drops: list[float] = []
    for batch in drawn(cell, runs, random, None, 0.0):
        interval, old = gate(cell, batch), former(cell, batch)
        same += (
            (batch.difference - Z * error > -margin).sum(),
            (interval.low > -margin).sum(),
            (old.low > -margin).sum(),
            (interval.low > -wide).sum(),
        )
        drops += [drop_said(batch, at) for at in range(min(SEEN - len(drops), len(batch.new)))]
    oracle, now, then, wider = same / runs
    fails = fallen(cell, runs, random, margin) if margin > 0 else (0.0, 0.0, 0.0)
    drop = float(np.mean(drops))
    return Power(margin, (oracle, now, then), (wide, wider), fails, drop, fallen(cell, runs, random, drop)[1])


def drop_said(batch: Drawn, at: int) -> float:
    """Returns the drop that the gate says a comparison can detect."""
    new, base = (
        {str(number): ScenarioSample("", tuple(scores)) for number, scores in enumerate(runs[at].tolist())}
        for runs in (batch.new, batch.base)
    )
    decision = compare(new, base, 0.05)
    assert decision.detectable is not None
    return decision.detectable


def fallen(cell: Cell, runs: int, random: np.random.Generator, drop: float) -> tuple[float, float, float]:
    """Returns shares of FAIL (oracle, gate, former gate) with a margin of 0, if every scenario scores a little less."""
    counts = np.zeros(3)
    for batch in drawn(cell, runs, random, fade, drop):
        interval = gate(cell, batch)
        counts += (
            (batch.difference + Z * batch.oracle < 0).sum(),
            fails_without_margin(cell, batch, interval).sum(),
            (former(cell, batch).high < 0).sum(),
        )
    oracle, now, then = counts / runs
    return oracle, now, then


def lost(cell: Cell, runs: int, seed: int, margin: float, share: float = 0.02) -> tuple[float, float]:
    """Returns the shares of wrong PASS and wrong FAIL if the worst rollouts of the new run were lost, so that only good ones count."""
    random = np.random.default_rng(seed)
    passes = fails = 0
    for batch in drawn(cell, runs, random, fade, margin):
        for new, base in zip(batch.new.tolist(), batch.base.tolist(), strict=True):
            ordered = sorted((score, i, k) for i, each in enumerate(new) for k, score in enumerate(each))
            missing = {*ordered[: int(share * cell.n * cell.trials)]}
            samples = {
                str(i): _sample([score for k, score in enumerate(each) if (score, i, k) not in missing], cell.trials)
                for i, each in enumerate(new)
            }
            decision = compare(samples, {str(i): ScenarioSample("", tuple(each)) for i, each in enumerate(base)}, margin)
            passes += decision.verdict == "PASS"
            fails += decision.verdict == "FAIL"
    return passes / runs, fails / runs


def _sample(scores: list[float], trials: int) -> ScenarioSample:
    return replace(ScenarioSample("", tuple(scores)), lost=trials - len(scores))
