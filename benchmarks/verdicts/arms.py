"""Simulates A/B sessions with more than two arms: how often the gate reports a difference that does not exist, or finds a real one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

from benchmarks.verdicts.kinds import KINDS, fade
from benchmarks.verdicts.latency import CALLS, NOISE, SCENARIO, ar1
from benchmarks.verdicts.latency import SLOWER as BY
from pytest_agentbench.gate.ab import BETTER, FASTER, SLOWER, WORSE, ArmPair, ArmQuestion, answers, compare_scores
from pytest_agentbench.records import SHARE
from pytest_agentbench.rollouts.pool.blocks import order
from pytest_agentbench.runs.results import ArmFacts
from pytest_agentbench.stats.latency import RolloutLatencies, compare_interleaved
from pytest_agentbench.stats.paired import ScenarioSample

N, ROUNDS, TRIALS = 100, 10, 3
DROPS = {"continuous": 0.04, "binary": 0.1}  # of the arm that scores less


@dataclass(frozen=True)
class Cell:
    """A simulated setting: a number of arms, compared with the first or with each other, by scores or latencies."""

    arms: int
    with_each_other: bool
    kind: str = ""  # of scores; empty of latencies
    likeness: float = 0.0  # of the load of rollouts that follow each other

    @property
    def pairs(self) -> list[ArmPair]:
        names = [str(arm) for arm in range(self.arms)]
        every = [ArmPair(*pair) for pair in combinations(names, 2)]
        return every if self.with_each_other else [pair for pair in every if pair.base == "0"]


@dataclass(frozen=True)
class Outcome:
    """The results for a cell, as shares of its simulated sessions."""

    cell: Cell
    claims: float  # all arms are equal, and something is claimed
    wrong: float  # the last arm is slower, or scores less, and something else is claimed
    found: float  # that arm is said to be so, compared with the first


def cells(*, quick: bool) -> Iterator[Cell]:
    """Yields the cells to simulate. With `quick`, these are one for latencies and one for scores, for CI."""
    ways = [(3, False)] if quick else [(3, False), (4, False), (4, True)]
    for (arms, with_each_other), likeness in product(ways, (0.8,) if quick else (0.0, 0.8)):
        yield Cell(arms, with_each_other, likeness=likeness)
    for (arms, with_each_other), kind in product(ways, ("binary",) if quick else DROPS):
        yield Cell(arms, with_each_other, kind)


def simulate(cell: Cell, runs: int, seed: int) -> Outcome:
    random = np.random.default_rng(seed)
    claims = wrong = found = 0
    last = str(cell.arms - 1)
    for _ in range(runs):
        claims += bool(_claimed(cell, random, differs=False))
        told = _claimed(cell, random, differs=True)
        right = {(pair, word) for pair in cell.pairs if pair.new == last for word in (WORSE, SLOWER)}
        wrong += bool(told - right)
        found += any(pair.base == "0" for pair, _ in told & right)
    return Outcome(cell, claims / runs, wrong / runs, found / runs)


def _claimed(cell: Cell, random: np.random.Generator, *, differs: bool) -> set[tuple[ArmPair, str]]:
    """Simulates a session. Returns the differences that it reports, as (pair of arms, word). `differs` makes the last arm worse."""
    question = _scores(cell, random, differs=differs) if cell.kind else _latencies(cell, random, differs=differs)
    compared = answers(question, cell.pairs, ArmFacts())
    return {(ArmPair(each.base_arm, each.new_arm), each.finding) for each in compared if each.finding in (BETTER, WORSE, FASTER, SLOWER)}


def _scores(cell: Cell, random: np.random.Generator, *, differs: bool) -> ArmQuestion:
    kind = KINDS[cell.kind]
    means = kind.means(random, (1, N))
    lower = fade(random, means, DROPS[cell.kind]).means
    arms = {}
    for arm in range(cell.arms):
        scores = kind.trials(random, lower if differs and arm == cell.arms - 1 else means, TRIALS)[0]
        arms[str(arm)] = {str(at): ScenarioSample("same", tuple(each)) for at, each in enumerate(scores.tolist())}
    return ArmQuestion(
        "suite",
        "tsq",
        dict.fromkeys(arms),
        lambda pair, confidence: compare_scores(SHARE, arms[pair.new], arms[pair.base], confidence),
        (BETTER, WORSE),
        {},
    )


def _latencies(cell: Cell, random: np.random.Generator, *, differs: bool) -> ArmQuestion:
    """Simulates latencies. The noise of a rollout is only load, which changes gradually through the blocks of all arms."""
    scenarios, load = random.normal(0, SCENARIO, N), iter(ar1(cell.arms * N, cell.likeness, random).tolist())
    slower = [BY if differs and arm == cell.arms - 1 else 0.0 for arm in range(cell.arms)]
    arms: dict[str, list[RolloutLatencies]] = {str(arm): [] for arm in range(cell.arms)}
    began = 0
    for number, block in enumerate(np.array_split(np.arange(N), ROUNDS)):
        for arm in order(cell.arms, number):
            for scenario in block.tolist():
                level = scenarios[scenario] + NOISE * next(load) + slower[arm]
                values = np.exp(level + random.normal(0, NOISE, CALLS))
                arms[str(arm)].append(RolloutLatencies(str(scenario), 1, began, tuple(values.tolist())))
                began += 1
    return ArmQuestion(
        "suite",
        "ttft.p50",
        dict.fromkeys(arms),
        lambda pair, confidence: compare_interleaved(arms[pair.new], arms[pair.base], 50, confidence=confidence),
        (FASTER, SLOWER),
        {},
    )


@dataclass(frozen=True)
class Arms:
    """The results of all simulated sessions with more than two arms."""

    count: int  # sessions of each cell, and of each truth
    outcomes: Sequence[Outcome]

    @property
    def worst(self) -> float:
        """The greatest share of sessions that report a difference that does not exist."""
        return max(max(each.claims, each.wrong) for each in self.outcomes)


HEADS = ["arms", "compared", "what", "claims", "wrong claims", "found"]
INTRODUCTION = """
## More than two arms

Each share is of {count} sessions, of 100 scenarios: latencies in 10 rounds of blocks, scores of 3 trials, paired by scenario. Arms take
turns in their balanced order, and the comparisons of a session share one risk of 5 % (Holm). *Claims*: all arms are equal, and one is said
to differ. *Wrong claims*: the last arm is slower, or scores less, and something else is claimed, such as a difference of two others. Each
is to be so in 5 %. *Found*: the last arm is said to be slower, or worse, than the first.
"""


def row(outcome: Outcome) -> list[object]:
    cell = outcome.cell
    what = f"scores: {cell.kind}, {DROPS[cell.kind]:g} less" if cell.kind else f"p50, autocorrelation {cell.likeness:g}, 25 % slower"
    shares = [f"{100 * share:.1f} %" for share in (outcome.claims, outcome.wrong, outcome.found)]
    return [cell.arms, "with each other" if cell.with_each_other else "with the first", what, *shares]
