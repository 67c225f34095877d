"""Rollouts in blocks: one arm at a time, and the arms take turns, so that what drifts during a session meets all of them alike."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from pytest_agentbench.records import RolloutKey
from pytest_agentbench.rollouts.pool.turn_order import order
from pytest_agentbench.suites.arms import VariantOrigin

WAVES = 4  # rollouts of a block for each one in flight: the end of a block, when few are, is a small part of it then
ROUNDS = 10  # in which each arm has a block, from which on blocks are so long; with fewer they are shorter, down to one rollout in flight

BlockTasks = list[dict[str, RolloutKey]]  # arm -> rollout of the same scenario and trial


@dataclass(frozen=True)
class Block:
    """Rollouts that run without one of another arm between them."""

    arm: str
    keys: tuple[RolloutKey, ...]
    concurrency: int  # rollouts in flight


def arrange(
    keys: Sequence[RolloutKey],
    sides: Mapping[str, VariantOrigin],
    concurrency: int,
    own: Mapping[str, int] = MappingProxyType({}),
    *,
    in_sequence: bool = False,
) -> list[Block]:
    """Blocks of all rollouts; `sides` says what each variant is made of, the arms in their order.

    `concurrency` is the greatest number of rollouts in flight, `own` that of arms which have one of their own.
    No block has two trials of a scenario, so that a block which begins with an empty cache is a cold one. In a round of blocks all arms
    run the same scenarios, in the order of `turn_order`. `in_sequence` runs all of one arm first, and then all of the next one.
    """
    arms = [*dict.fromkeys(side.arm for side in sides.values())]
    groups: dict[tuple[str, int], dict[tuple[str, str], dict[str, RolloutKey]]] = {}
    for key in keys:
        side = sides[key.variant]
        groups.setdefault((side.variant, key.trial), {}).setdefault((key.suite, key.scenario), {})[side.arm] = key
    fewest = 2 if len(arms) > 1 and len(groups) == 1 else 1
    wanted = math.ceil(ROUNDS / max(1, len(groups)))
    chunks = [
        chunk
        for tasks in groups.values()
        for chunk in _chunks([*tasks.values()], _count(len(tasks), concurrency, wanted, fewest) if len(arms) > 1 else 1)
    ]
    blocks = [
        Block(arm, tuple(task[arm] for task in chunk if arm in task), own.get(arm, concurrency))
        for number, chunk in enumerate(chunks)
        for arm in (arms[place] for place in order(len(arms), number))
    ]
    if in_sequence:
        blocks.sort(key=lambda block: arms.index(block.arm))
    return [block for block in blocks if block.keys]


def _count(tasks: int, concurrency: int, wanted: int, fewest: int) -> int:
    """How many rounds of blocks so many rollouts make: those of `WAVES`, or more where there would be fewer than are wanted."""
    return max(fewest, math.ceil(tasks / (WAVES * concurrency)), min(wanted, tasks // concurrency))


def _chunks(tasks: BlockTasks, count: int) -> list[BlockTasks]:
    """Parts of nearly the same size."""
    ends = [len(tasks) * number // count for number in range(count + 1)]
    return [tasks[start:end] for start, end in itertools.pairwise(ends)]
