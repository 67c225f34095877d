"""The order of blocks in an A/B session."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.records import RolloutKey
from pytest_agentbench.rollouts.pool.blocks import WAVES, arrange
from pytest_agentbench.suites.arms import VariantOrigin, origins, parse_arms

AB = origins(("default", "hot"), parse_arms("a=x,b=y"))
ABC = origins(("default", "hot"), parse_arms("a=x,b=y,c=z"))


def keys(scenarios: int, trials: int = 1, variants: tuple[str, ...] = ("a", "b")) -> list[RolloutKey]:
    """Returns keys in pytest's order: all of one arm first."""
    every = [(variant, trial, number) for variant in variants for trial in range(1, trials + 1) for number in range(scenarios)]
    return [RolloutKey("shop", f"s{number}", variant, trial) for variant, trial, number in every]


def test_arms_take_turns() -> None:
    """Both arms run the same scenarios one after the other, half of the time in reverse order. Each arm has at least two blocks."""
    few, many = arrange(keys(6), AB, 8), arrange(keys(10 * WAVES), AB, 1)

    assert ["a", "b", "b", "a"] == [block.arm for block in few]
    assert ["s0", "s1", "s2"] == [key.scenario for key in few[0].keys] == [key.scenario for key in few[1].keys]
    assert "abbabaab" * 2 + "abba" == "".join(block.arm for block in many)
    assert {WAVES} == {len(block.keys) for block in many}
    assert "aabb" == "".join(block.arm for block in arrange(keys(6), AB, 8, in_sequence=True))


def test_more_than_two_arms() -> None:
    """More than two arms alternate in a balanced order, each with the scenarios of the round, or run one after the other."""
    blocks = arrange(keys(10 * WAVES, variants=("a", "b", "c")), ABC, 1)
    rounds = [blocks[start : start + 3] for start in range(0, len(blocks), 3)]

    assert "abc cba bca acb cab bac cba abc acb bca" == " ".join("".join(block.arm for block in each) for each in rounds)
    assert all(len({tuple(key.scenario for key in block.keys) for block in each}) == 1 for each in rounds)
    assert "aabbcc" == "".join(block.arm for block in arrange(keys(6, variants=("a", "b", "c")), ABC, 8, in_sequence=True))


def test_arms_with_a_concurrency_of_their_own() -> None:
    """Each block runs at its arm's concurrency. All blocks have the same length, enough for the greatest concurrency."""
    blocks = arrange(keys(60), AB, 6, {"b": 2})

    assert {("a", 6), ("b", 2)} == {(block.arm, block.concurrency) for block in blocks}
    assert {6} == {len(block.keys) for block in blocks}


@pytest.mark.parametrize(
    ("scenarios", "trials", "concurrency", "pairs"), [(100, 1, 8, 10), (100, 3, 8, 12), (24, 1, 6, 4), (500, 1, 8, 16)]
)
def test_blocks_are_shorter_if_there_are_few_scenarios(scenarios: int, trials: int, concurrency: int, pairs: int) -> None:
    """There are ten rounds, because an interval needs pairs of blocks, unless a block would be smaller than the concurrency."""
    blocks = arrange(keys(scenarios, trials), AB, concurrency)

    assert 2 * pairs == len(blocks)
    assert min(len(block.keys) for block in blocks) >= concurrency


def test_without_arms_trials_are_blocks() -> None:
    """A session of one backend has a block for each trial, however many scenarios there are."""
    blocks = arrange(keys(100, 3, ("default",)), {"default": VariantOrigin("default", "")}, 1)

    assert [("", 100), ("", 100), ("", 100)] == [(block.arm, len(block.keys)) for block in blocks]


@given(
    scenarios=st.integers(1, 40),
    trials=st.integers(1, 4),
    concurrency=st.integers(1, 9),
    left_out=st.sets(st.integers(0, 200)),
    in_sequence=st.booleans(),
    both=st.booleans(),
)
def test_every_rollout_is_in_one_block(
    scenarios: int, trials: int, concurrency: int, left_out: set[int], in_sequence: bool, both: bool
) -> None:
    """Each rollout is in one block of its arm, without another trial of its scenario. No block is empty."""
    variants = ("a", "b", "c", "hot-a", "hot-b", "hot-c") if both else ("a", "b", "c")
    wanted = [key for number, key in enumerate(keys(scenarios, trials, variants)) if number not in left_out]

    blocks = arrange(wanted, ABC, concurrency, in_sequence=in_sequence)

    assert sorted(wanted) == sorted(key for block in blocks for key in block.keys)
    assert all(ABC[key.variant].arm == block.arm for block in blocks for key in block.keys)
    assert all(block.keys and len({key.scenario for key in block.keys}) == len(block.keys) for block in blocks)
    if in_sequence:
        assert [block.arm for block in blocks] == sorted(block.arm for block in blocks)
