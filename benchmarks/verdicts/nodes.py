"""Simulates A/B sessions of two equal arms on several nodes, one of which is farther from the backend, and so slower by a constant time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from benchmarks.verdicts.latency import CALLS, CONFIDENCE, NOISE, SCENARIO
from pytest_agentbench.rollouts.pool.blocks import order
from pytest_agentbench.stats.latency import RolloutLatencies, compare_interleaved

#: How the rollouts of an arm are given to nodes.
#:
#: - same: a scenario and trial runs on the same node in both arms.
#: - any: each rollout runs on a node that is drawn by chance.
#: - by arm: the slow node gets more rollouts of the new arm, as if it had joined when more of these were left.
Placing = Literal["same", "any", "by arm"]

N, PAIRS, NODES = 100, 10, 3  # scenarios, pairs of blocks, nodes
MEDIAN_MS, FARTHER_MS = 100.0, 50.0  # latency of a call at the other nodes, and how much longer it takes from the slow node
UNEVEN = 0.2  # with `by arm`: how much more often than by chance the slow node gets a rollout of the new arm, and less often of the other
SLOWER = math.log(1.25)  # of an arm that should be found


@dataclass(frozen=True)
class Outcome:
    """The results for a way of placing rollouts, as shares of the simulated sessions."""

    placing: Placing
    q: int  # percentile
    wrong_fails: float  # the new one of two equal arms is called slower
    claims: float  # it is called slower or faster
    found: float  # an arm that is 25 % slower is called slower
    width: float  # mean width of the interval, as a ratio of latencies


def simulate(placing: Placing, q: int, sessions: int, seed: int) -> Outcome:
    """Simulates sessions whose arms have equal latencies on each node. An arm that slows down all calls alike only shifts the interval."""
    random = np.random.default_rng(seed)
    wrong_fails, claims, found, widths = 0, 0, 0, []
    for _ in range(sessions):
        base, new = _session(placing, random)
        decision = compare_interleaved(new, base, q, confidence=CONFIDENCE)
        assert decision.low is not None and decision.high is not None, decision.reason
        wrong_fails += decision.low > 1
        claims += not decision.low <= 1 <= decision.high
        found += math.log(decision.low) + SLOWER > 0
        widths.append(math.log(decision.high / decision.low))
    return Outcome(placing, q, wrong_fails / sessions, claims / sessions, found / sessions, math.exp(float(np.mean(widths))) - 1)


def _session(placing: Placing, random: np.random.Generator) -> tuple[list[RolloutLatencies], list[RolloutLatencies]]:
    levels = random.normal(math.log(MEDIAN_MS), SCENARIO, N)
    placed = random.integers(0, NODES, N)
    arms: tuple[list[RolloutLatencies], list[RolloutLatencies]] = ([], [])
    for number, block in enumerate(np.array_split(np.arange(N), PAIRS)):
        for arm in order(2, number):
            for scenario in block.tolist():
                is_slow = placed[scenario] == 0 if placing == "same" else random.random() < _share_of_slow_node(placing, arm)
                own = random.normal(0, NOISE)
                values = np.exp(levels[scenario] + own + random.normal(0, NOISE, CALLS)) + FARTHER_MS * is_slow
                arms[arm].append(RolloutLatencies(str(scenario), 1, len(arms[0]) + len(arms[1]), tuple(values.tolist())))
    return arms


def _share_of_slow_node(placing: Placing, arm: int) -> float:
    """Returns the probability with which the slow node gets a rollout of an arm; 1 is the new arm."""
    return 1 / NODES + (UNEVEN * (1 if arm else -1) if placing == "by arm" else 0.0)
