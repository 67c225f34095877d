"""Latencies of two arms that took turns in one session: one logarithm of a ratio for each pair of blocks, and Student's t of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from statistics import fmean, stdev

from pytest_agentbench.stats.decisions import INCONCLUSIVE, Decision, MissingScenarios, judge
from pytest_agentbench.stats.latency import RolloutLatencies, by_scenario, check_latencies, fewest_values
from pytest_agentbench.stats.percentiles import percentile
from pytest_agentbench.stats.power import reach
from pytest_agentbench.stats.special import student_t_quantile

FEWEST_PAIRS = 4  # of blocks

LatencyPair = tuple[Sequence[RolloutLatencies], Sequence[RolloutLatencies]]  # what ran side by side: in the new arm, and in the other one


def compare_interleaved(new: Iterable[RolloutLatencies], base: Iterable[RolloutLatencies], q: int, *, confidence: float = 0.95) -> Decision:
    """Is the q-th percentile (0 to 100) lower or higher than the base arm's? A ratio, new / base, against 1.

    The two blocks of a pair run the same rollouts, one arm right after the other, so load that comes and goes meets both and is in no
    ratio; that is why this, unlike a comparison of two runs, is a claim about what the arms are made of. Raises ValueError for a latency
    that is not finite or not above 0, and for a q outside (0, 100).
    """
    new, base = [*new], [*base]
    ours, theirs = by_scenario(new), by_scenario(base)
    check_latencies(q, ours, theirs)
    shared = [scenario for scenario in ours if scenario in theirs]
    pairs = [pair for pair in block_pairs(new, base) if all(any(timing.values for timing in side) for side in pair)]
    known = {timing.scenario for pair in pairs for timing in pair[0]}
    missing = MissingScenarios(len(ours) - len(shared), len(theirs) - len(shared), 0, len(shared) - len(known))
    calls = [sum(len(timing.values) for pair in pairs for timing in pair[side]) for side in (0, 1)]
    blank = Decision(INCONCLUSIVE, 1.0, confidence, len(known), (calls[0], calls[1]), missing)
    if reason := _too_few(q, pairs):
        return replace(blank, reason=reason)
    return _decided(blank, [_log_ratio(pair, q) for pair in pairs])


def block_pairs(new: Iterable[RolloutLatencies], base: Iterable[RolloutLatencies]) -> list[LatencyPair]:
    """The rollouts of each pair of blocks, those that ran in both arms.

    Arms take turns (ABBA BAAB), so the order of time has stretches of one arm, of one block or of two; two rollouts of the same scenario
    and trial are of one pair of blocks when their stretches are neighbours.
    """
    arms = [{(each.scenario, each.trial): each for each in arm} for arm in (new, base)]
    stretches = [_stretches(arms, side) for side in (0, 1)]
    pairs: dict[tuple[int, int], tuple[list[RolloutLatencies], list[RolloutLatencies]]] = {}
    for key in (key for key in arms[0] if key in arms[1]):
        place = stretches[0][key], stretches[1][key]
        if abs(place[0] - place[1]) == 1:
            for side, timings in enumerate(pairs.setdefault(place, ([], []))):
                timings.append(arms[side][key])
    return [*pairs.values()]


def _stretches(arms: Sequence[Mapping[tuple[str, int], RolloutLatencies]], side: int) -> dict[tuple[str, int], int]:
    """Rollout of one arm -> number of its stretch, among those of both."""
    ordered = sorted((timing.began, at, key) for at, arm in enumerate(arms) for key, timing in arm.items())
    runs = groupby(ordered, key=lambda each: each[1])
    return {key: number for number, (at, run) in enumerate(runs) if at == side for _, _, key in run}


def _log_ratio(pair: LatencyPair, q: int) -> float:
    ours, theirs = (percentile([value for timing in side for value in timing.values], q) for side in pair)
    assert ours is not None and theirs is not None
    return math.log(ours / theirs)


def _decided(blank: Decision, ratios: Sequence[float]) -> Decision:
    estimate, error = fmean(ratios), stdev(ratios) / math.sqrt(len(ratios))
    distance = student_t_quantile((1 + blank.confidence) / 2, len(ratios) - 1) * error
    low, high = math.exp(estimate - distance), math.exp(estimate + distance)
    return replace(
        blank,
        verdict=judge(low, high, blank.threshold, higher_is_better=False),
        estimate=math.exp(estimate),
        low=low,
        high=high,
        method=f"t of {len(ratios)} interleaved pairs",
        detectable=math.exp(reach(distance, error)),
    )


def _too_few(q: int, pairs: Sequence[LatencyPair]) -> str:
    rollouts = min((sum(bool(timing.values) for pair in pairs for timing in pair[side]) for side in (0, 1)), default=0)
    if rollouts < (needed := fewest_values(q)):
        return f"p{q} needs {needed} rollouts of each arm, and there are {rollouts}"
    if len(pairs) < FEWEST_PAIRS:
        return (
            f"the arms took turns in {len(pairs)} pair{'s' * (len(pairs) != 1)} of blocks, and it takes {FEWEST_PAIRS}: "
            "more trials, or a smaller --agentbench-concurrency"
        )
    return ""
