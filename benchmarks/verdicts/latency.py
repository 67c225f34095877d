"""Simulates comparisons of latencies if the load of the machine changes: of two separate runs, and of two interleaved arms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from benchmarks.verdicts.kinds import Floats
from pytest_agentbench.rollouts.pool.blocks import order
from pytest_agentbench.stats.latency import FEWEST_PAIRS, RolloutLatencies, compare_interleaved, compare_latency

CONFIDENCE = 0.95
CALLS = 5  # of a rollout
SCENARIO, NOISE = 0.5, 0.3  # standard deviations of logarithms: of scenarios, and of load and rollout together, and of a call
MARGIN, SLOWER = math.log(1.1), math.log(1.25)
RESAMPLES = 199
LIKENESS = (0.0, 0.5, 0.8, 0.95)
CLAIMED = 0.8  # up to which the promise holds


@dataclass(frozen=True)
class Cell:
    """A simulated setting: two runs of n scenarios.

    The logarithm of a latency is the sum of an effect of the scenario, of the load (AR(1) in the order of time) and of random noise.
    """

    q: int
    n: int
    trials: int
    likeness: float  # autocorrelation of load between rollouts that follow each other
    share: float  # of load in the variance of a rollout, beside its own noise
    shuffled: bool  # whether the baseline ran its scenarios in another order

    def __str__(self) -> str:
        return f"p{self.q}-{self.n}x{self.trials}-{self.likeness}-{self.share}{'-shuffled' * self.shuffled}"


@dataclass(frozen=True)
class Outcome:
    """The results for a cell, as shares of its comparisons. In wrong verdicts, the new run is slower by exactly the margin."""

    cell: Cell
    wrong_pass: float
    wrong_fail: float
    undecided: float  # refused, because rollouts are too much alike
    passes: float  # of equal runs, with a margin of 10 %
    fails: float  # of a run that is 25 % slower
    former_wrong_pass: float  # of the bootstrap that draws whole scenarios
    former_wrong_fail: float
    former_passes: float

    @property
    def claimed(self) -> bool:
        """Whether the gate promises few errors for this cell. It does not if the load changes so slowly that rollouts cannot show it."""
        return self.cell.likeness <= CLAIMED


def cells() -> Iterator[Cell]:
    for (q, n, trials), likeness, share, shuffled in product(
        ((50, 100, 1), (50, 100, 3), (90, 100, 3)), LIKENESS, (1.0, 0.5), (False, True)
    ):
        yield Cell(q, n, trials, likeness, share, shuffled)


def simulate(cell: Cell, runs: int, seed: int) -> Outcome:
    """Simulates a cell. Only equal runs are compared, because a slower run only shifts the bounds of the ratio."""
    random, counts = np.random.default_rng(seed), np.zeros(8)
    for _ in range(runs):
        scenarios = random.normal(0, SCENARIO, cell.n)
        new, base = (_run(cell, scenarios, random, shuffled=shuffled) for shuffled in (False, cell.shuffled))
        found = compare_latency(_timings(new), _timings(base), cell.q, 0.1, confidence=CONFIDENCE)
        counts += (*_judged(found.low, found.high), *_former(cell, new[0], base[0], random))
    return Outcome(cell, *(counts / runs).tolist())


def _judged(low: float | None, high: float | None) -> tuple[bool, ...]:
    """Returns (wrong PASS, wrong FAIL, undecided, PASS, FAIL) for the bounds of a ratio of latencies."""
    if low is None or high is None:
        return False, False, True, False, False
    return high < 1, low > 1, False, math.log(high) < MARGIN, math.log(low) + SLOWER > MARGIN


Run = tuple[Floats, Floats]  # (scenario, trial, call) milliseconds; (scenario, trial) when it began


def _run(cell: Cell, scenarios: Floats, random: np.random.Generator, *, shuffled: bool) -> Run:
    """Simulates a run, which does one trial of all scenarios after the other, always in the same order of scenarios."""
    order = random.permutation(cell.n) if shuffled else np.arange(cell.n)
    began = order[:, None] + cell.n * np.arange(cell.trials)
    load = ar1(cell.n * cell.trials, cell.likeness, random)[began]
    own = random.normal(0, 1, began.shape)
    rollouts = NOISE * (math.sqrt(cell.share) * load + math.sqrt(1 - cell.share) * own)
    calls = random.normal(0, NOISE, (*began.shape, CALLS))
    return np.exp(scenarios[:, None, None] + rollouts[..., None] + calls), began.astype(np.float64)


def ar1(count: int, likeness: float, random: np.random.Generator) -> Floats:
    """Returns values of a stationary AR(1) process with variance 1. `likeness` is the autocorrelation."""
    steps = random.normal(0, 1, count)
    values = np.empty(count)
    values[0] = steps[0]
    for at in range(1, count):
        values[at] = likeness * values[at - 1] + math.sqrt(1 - likeness**2) * steps[at]
    return values


def _timings(run: Run) -> list[RolloutLatencies]:
    values, began = run
    places = np.ndindex(*began.shape)
    return [RolloutLatencies(str(at), trial, float(began[at, trial]), tuple(values[at, trial].tolist())) for at, trial in places]


def _former(cell: Cell, new: Floats, base: Floats, random: np.random.Generator) -> tuple[bool, bool, bool]:
    """Returns (wrong PASS, wrong FAIL, PASS) of the former gate: a bootstrap of whole scenarios, which it takes to be independent."""
    drawn = random.integers(0, cell.n, (RESAMPLES, cell.n))
    one, other = (
        np.log(np.quantile(each.reshape(cell.n, -1)[drawn].reshape(RESAMPLES, -1), cell.q / 100, axis=-1)) for each in (new, base)
    )
    low, high = np.sort(one - other)[[4, -5]]
    return bool(high < 0), bool(low > 0), bool(high < MARGIN)


@dataclass(frozen=True)
class Turns:
    """The results for two equal arms in interleaved blocks."""

    q: int
    n: int
    pairs: int  # of blocks
    likeness: float
    claims: float  # share in which one of them is called faster or slower
    found: float  # share in which an arm that is 10 % slower is called slower

    @property
    def claimed(self) -> bool:
        return self.likeness <= CLAIMED


def turns_cells() -> Iterator[tuple[int, int, int, float]]:
    return product((50, 90), (100,), (FEWEST_PAIRS, 10, 20), LIKENESS)


def turns(q: int, n: int, pairs: int, likeness: float, runs: int, seed: int) -> Turns:
    """Simulates two interleaved arms. The noise of a rollout is only load, which changes gradually through the blocks of both arms."""
    random, claims, found = np.random.default_rng(seed), 0, 0
    blocks = np.array_split(np.arange(n), pairs)
    for _ in range(runs):
        scenarios, load = random.normal(0, SCENARIO, n), iter(ar1(2 * n, likeness, random).tolist())
        arms: tuple[list[RolloutLatencies], list[RolloutLatencies]] = ([], [])
        for number, block in enumerate(blocks):
            for arm in order(2, number):
                for scenario in block.tolist():
                    level = scenarios[scenario] + NOISE * next(load)
                    values = np.exp(level + random.normal(0, NOISE, CALLS))
                    arms[arm].append(RolloutLatencies(str(scenario), 1, len(arms[0]) + len(arms[1]), tuple(values.tolist())))
        decision = compare_interleaved(*arms, q, confidence=CONFIDENCE)
        assert decision.low is not None and decision.high is not None, decision.reason
        claims += not decision.low <= 1 <= decision.high
        found += math.log(decision.low) + MARGIN > 0
    return Turns(q, n, pairs, likeness, claims / runs, found / runs)


@dataclass(frozen=True)
class Latencies:
    """The results of all simulated comparisons of latencies."""

    count: int  # comparisons of each cell
    runs_apart: Sequence[Outcome]
    turns: Sequence[Turns]
