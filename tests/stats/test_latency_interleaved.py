"""Two alternating arms: which rollouts form a pair of blocks, and the decision from the ratios of the pairs."""

from __future__ import annotations

import random

import pytest

from pytest_agentbench.rollouts.pool.blocks import order
from pytest_agentbench.stats.latency import RolloutLatencies, block_pairs, compare_interleaved


def arms(
    pairs: int, size: int = 10, slower: float = 1.0, load: float = 0.0, seed: int = 1
) -> tuple[list[RolloutLatencies], list[RolloutLatencies]]:
    """Returns (new, base) in the order of `rollouts/pool/blocks`. Load makes each pair of blocks slower than the previous one."""
    generator = random.Random(seed)
    origins: tuple[list[RolloutLatencies], list[RolloutLatencies]] = ([], [])
    for pair in range(pairs):
        for side in (1 - arm for arm in order(2, pair)):
            for scenario in range(pair * size, (pair + 1) * size):
                value = 100 * (slower if side == 0 else 1.0) * (1 + load) ** pair * generator.lognormvariate(0, 0.1)
                origins[side].append(RolloutLatencies(str(scenario), 1, len(origins[0]) + len(origins[1]), (value,)))
    return origins


@pytest.mark.parametrize("pairs", [1, 2, 9])
def test_pairs_of_blocks_are_found_in_the_order_of_time(pairs: int) -> None:
    """Although two blocks of one arm are often adjacent, each pair of blocks has its own rollouts, and both arms have the same scenarios in
    it.
    """
    found = block_pairs(*arms(pairs))

    assert pairs == len(found)
    assert all([each.scenario for each in new] == [each.scenario for each in base] and len(new) == 10 for new, base in found)


def test_rollouts_far_apart_in_time_are_not_a_pair() -> None:
    """A rollout that was repeated long after its partner is left out, and so is one without a partner."""
    new, base = arms(6)
    late = [new[0]._replace(began=1e6), *new[1:-1]]

    assert [9, 10, 10, 10, 10, 9] == [len(side) for side, _ in block_pairs(late, base)]


def test_growing_load_does_not_affect_the_ratios() -> None:
    """Each pair of blocks is slower by half than the previous one. A difference of a tenth is still detected, and equal arms show none."""
    slower = compare_interleaved(*arms(10, slower=1.1, load=0.5), 50)
    same = compare_interleaved(*arms(10, load=0.5), 50)

    assert ("FAIL", "INCONCLUSIVE", "t of 10 interleaved pairs") == (slower.verdict, same.verdict, slower.method)
    assert slower.low is not None and slower.high is not None and slower.low < 1.1 < slower.high
    assert "" == same.reason and (100, (100, 100)) == (same.n, same.trials)


def test_too_few_pairs_decide_nothing() -> None:
    """Arms that ran in sequence do not alternate, so nothing is decided.

    Four pairs are enough, and a tail percentile also needs its rollouts.
    """
    one, three, four = (compare_interleaved(*arms(pairs, 40), 50) for pairs in (1, 3, 4))

    assert one.reason == (
        "the arms alternated in 1 pair of blocks, but 4 are needed; "
        "run more trials (--agentbench-trials), or use a lower --agentbench-concurrency"
    )
    assert "the arms alternated in 3 pairs of blocks" in three.reason
    assert "" == four.reason
    assert (
        "p99 needs 1000 rollouts of each arm, but there are 160; run more trials (--agentbench-trials)"
        == compare_interleaved(*arms(4, 40), 99).reason
    )
    none = compare_interleaved([], [], 50)
    assert "p50 needs 20 rollouts of each arm, but there are 0; run more trials (--agentbench-trials)" == none.reason
