"""Rollouts in blocks: one arm at a time, in the order ABBA BAAB, so that what drifts during a session meets both arms alike."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_agentbench.records import RolloutKey
from pytest_agentbench.suites.arms import Side

WAVES = 4  # rollouts of a block for each one in flight: the end of a block, when few are, is a small part of it then
PAIRS = 10  # of blocks, from which on they are so long; with fewer they are shorter, down to one rollout for each one in flight

Tasks = list[dict[str, RolloutKey]]  # arm -> rollout of the same scenario and trial


@dataclass(frozen=True)
class Block:
    """Rollouts that run without one of another arm between them."""

    arm: str
    keys: tuple[RolloutKey, ...]


def arrange(keys: Sequence[RolloutKey], sides: Mapping[str, Side], concurrency: int, *, in_sequence: bool = False) -> list[Block]:
    """Blocks of all rollouts; `sides` says what each variant is made of, the arms in their order.

    No block has two trials of a scenario, so that a block which begins with an empty cache is a cold one. The arms of a pair of blocks
    run the same scenarios, in the order of `begins`. `in_sequence` runs all of one arm first.
    """
    arms = [*dict.fromkeys(side.arm for side in sides.values())]
    groups: dict[tuple[str, int], dict[tuple[str, str], dict[str, RolloutKey]]] = {}
    for key in keys:
        side = sides[key.variant]
        groups.setdefault((side.variant, key.trial), {}).setdefault((key.suite, key.scenario), {})[side.arm] = key
    fewest = 2 if len(arms) > 1 and len(groups) == 1 else 1
    wanted = math.ceil(PAIRS / max(1, len(groups)))
    chunks = [
        chunk
        for tasks in groups.values()
        for chunk in _chunks([*tasks.values()], _count(len(tasks), concurrency, wanted, fewest) if len(arms) > 1 else 1)
    ]
    blocks = [
        Block(arm, tuple(task[arm] for task in chunk if arm in task))
        for number, chunk in enumerate(chunks)
        for arm in (arms if begins(number) else arms[::-1])
    ]
    if in_sequence:
        blocks.sort(key=lambda block: arms.index(block.arm))
    return [block for block in blocks if block.keys]


def begins(number: int) -> bool:
    """Whether the first arm begins a pair of blocks, counted from 0: AB BA BA AB, and again.

    What drifts steadily cancels out in four pairs, as in ABBA. Neighbouring pairs are in the same order as often as not: where load comes
    and goes their ratios are not alike then, which ABBA, with two blocks of one arm in a row at each step, would make them.
    """
    return number % 4 in (0, 3)


def _count(tasks: int, concurrency: int, wanted: int, fewest: int) -> int:
    """How many pairs of blocks so many rollouts make: those of `WAVES`, or more where there would be fewer than are wanted."""
    return max(fewest, math.ceil(tasks / (WAVES * concurrency)), min(wanted, tasks // concurrency))


def _chunks(tasks: Tasks, count: int) -> list[Tasks]:
    """Parts of nearly the same size."""
    ends = [len(tasks) * number // count for number in range(count + 1)]
    return [tasks[start:end] for start, end in itertools.pairwise(ends)]
