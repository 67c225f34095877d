"""Simulates `--agentbench-trials=auto`: runs that stop after the round of trials that decides, compared with runs of all trials."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from benchmarks.verdicts.kinds import CHANGES, Floats, fade
from benchmarks.verdicts.suite import (
    CONFIDENCE,
    MARGINS,
    Z80,
    Cell,
    Drawn,
    NDBool,
    Z,
    changes_of,
    drawn,
    fails_without_margin,
    gate,
    true_error,
)
from pytest_agentbench.stats.decisions import FIRST_LOOK, InterimLooks
from pytest_agentbench.stats.means import IMAGINARY, RunTrials, guarded, noise, plain
from pytest_agentbench.stats.quantiles import normal_quantile

MOST = 5

#: Where the design with all trials at once has so much power, at most this share of its rollouts is run.
BARS = ((0.98, 0.55), (0.8, 0.75))

#: Distances from the threshold, in those that a z test which knows the variance finds 80 % of the time.
WIDER = (1.1, 1.6)

MARGIN = 0.02  # where FAIL is simulated


@dataclass(frozen=True)
class Spared:
    """The results for one true change: shares of right verdicts, and the rollouts that they took."""

    distance: float  # from the threshold
    fixed: float  # share of right verdicts with all trials at once
    auto: float  # with rounds
    rollouts: float  # share of the fixed design's

    @property
    def bar(self) -> float:
        """The largest share of rollouts that the promise allows, or 1 if nothing is promised."""
        return next((most for power, most in BARS if self.fixed >= power), 1.0)


@dataclass(frozen=True)
class Outcome:
    cell: Cell  # with the most trials
    wrong_pass: float
    wrong_fail: float
    passes: tuple[Spared, ...]  # nothing has changed
    fails: tuple[Spared, ...]  # every scenario faded

    @property
    def promised(self) -> bool:
        """Whether a saving is promised. It is not if the baseline has more trials, because then an early look knows less."""
        return self.cell.base_trials <= self.cell.trials


@dataclass(frozen=True)
class Ended:
    """How each of many simulated runs ended, as arrays with one entry per run."""

    passed: NDBool
    failed: NDBool
    rounds: Floats


Decides = Callable[[int, float], tuple[NDBool, NDBool]]  # (rounds, confidence) -> (PASS, FAIL)


def ended(runs: int, looks: InterimLooks, decides: Decides) -> Ended:
    """Simulates interim looks after each round of trials. Each run stops at the first look that gives PASS or FAIL."""
    passed, failed = np.zeros(runs, bool), np.zeros(runs, bool)
    rounds = np.full(runs, float(looks.most))
    for each in range(FIRST_LOOK, looks.most + 1):
        passes, fails = decides(each, looks.confidence(each, CONFIDENCE))
        open_ = ~passed & ~failed
        rounds[open_ & (passes | fails)] = each
        passed, failed = passed | (open_ & passes), failed | (open_ & fails & ~passes)
    return Ended(passed, failed, rounds)


def compared(cell: Cell, batch: Drawn, margin: float) -> Ended:
    """Simulates runs that are compared with a baseline, which has a fixed number of trials."""

    def decides(rounds: int, confidence: float) -> tuple[NDBool, NDBool]:
        part, so_far = replace(cell, trials=rounds), replace(batch, new=batch.new[..., :rounds])
        interval = gate(part, so_far, confidence)
        fails = interval.high < -margin if margin else fails_without_margin(part, so_far, interval, confidence)
        return interval.low > -margin if margin else np.zeros(len(fails), bool), fails

    return ended(len(batch.new), InterimLooks(cell.trials, cell.base_trials), decides)


def simulate(cell: Cell, runs: int, seed: int) -> Outcome:
    random = np.random.default_rng(seed)
    wrong_pass, wrong_fail = 0.0, 0.0
    for change, margin in product(changes_of(cell), MARGINS):
        if margin * cell.n < 0.5 * (change in CHANGES[2:]):
            continue
        found = [compared(cell, batch, margin) for batch in drawn(cell, runs, random, change, margin)]
        wrong_pass = max(wrong_pass, sum(float(each.passed.sum()) for each in found) / runs)
        wrong_fail = max(wrong_fail, sum(float(each.failed.sum()) for each in found) / runs)
    same = [compared(cell, batch, 0.0) for batch in drawn(cell, runs, random, None, 0.0)]
    wrong_fail = max(wrong_fail, sum(float(each.failed.sum()) for each in same) / runs)
    m80 = (Z + Z80) * true_error(cell, random)
    passes = [_spared(cell, runs, random, wider * math.hypot(m80, _soonest(cell)), 0.0) for wider in WIDER]
    fails = [_spared(cell, runs, random, MARGIN, wider * m80) for wider in WIDER if m80]
    return Outcome(cell, wrong_pass, wrong_fail, tuple(passes), tuple(fails))


def _soonest(cell: Cell) -> float:
    """Returns the smallest margin with which the first look can give PASS. Below it, no saving of rollouts can be required."""
    value = normal_quantile((1 + InterimLooks(cell.trials, cell.base_trials).confidence(FIRST_LOOK, CONFIDENCE)) / 2)
    return math.sqrt(2 * IMAGINARY) * value**2 / (cell.n * min(FIRST_LOOK, cell.base_trials))


def _spared(cell: Cell, runs: int, random: np.random.Generator, margin: float, beyond: float) -> Spared:
    """Simulates unchanged runs and how often they pass, or runs whose drop exceeds the margin by `beyond` and how often they fail."""
    fixed, auto, rounds = 0.0, 0.0, 0.0
    change = fade if beyond else None
    for batch in drawn(cell, runs, random, change, margin + beyond if beyond else 0.0):
        whole, found = gate(cell, batch), compared(cell, batch, margin)
        fixed += float(((whole.high < -margin) if beyond else (whole.low > -margin)).sum())
        auto += float((found.failed if beyond else found.passed).sum())
        rounds += float(found.rounds.sum())
    return Spared(beyond or margin, fixed / runs, auto / runs, rounds / runs / cell.trials)


@dataclass(frozen=True)
class Limited:
    """The results for runs without a baseline: shares of wrong verdicts if the threshold is the true mean of the suite."""

    cell: Cell
    wrong_pass: float
    wrong_fail: float


def against_limit(cell: Cell, runs: int, seed: int) -> Limited:
    random = np.random.default_rng(seed)
    means = cell.scores.means(random, (runs, cell.n))
    trials, truth = cell.scores.trials(random, means, cell.trials), means.mean(-1)

    def decides(rounds: int, confidence: float) -> tuple[NDBool, NDBool]:
        found = noise(RunTrials.of(trials[..., :rounds]))
        one, other = plain(found, confidence), guarded(found, (0.0, 1.0), confidence)
        return np.minimum(one.low, other.low) > truth, np.maximum(one.high, other.high) < truth

    found = ended(runs, InterimLooks(cell.trials), decides)
    return Limited(cell, float(found.passed.mean()), float(found.failed.mean()))
