"""Rollouts in blocks: one arm at a time. The arms take turns in a balanced order, so that what drifts during a session meets all of them
alike.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from pytest_agentbench.records import RolloutKey
from pytest_agentbench.suites.arms import VariantOrigin


def order(count: int, number: int) -> tuple[int, ...]:
    """The arms, counted from 0, in the order of their blocks in one round; rounds are counted from 0. AB BA BA AB of two arms.

    The rows are those of Williams (1949, Australian Journal of Scientific Research A 2:149): in a whole cycle, which has `cycle(count)`
    rounds, each arm is equally often at each place, and each comes equally often right after each other one. Each row is followed by its
    reverse, so that what drifts steadily cancels out in every two rounds, and no arm is changed between them. In every other cycle the
    reverse comes first: where load comes and goes, rounds that are neighbours are in the same order as often as not.
    """
    turn, place = divmod(number, cycle(count))
    row, second = divmod(place, 2)
    arms = tuple((arm + row) % count for arm in _first_row(count))
    return arms[::-1] if (turn + second) % 2 else arms


def cycle(count: int) -> int:
    """Rounds of so many arms after which all is balanced; of an even number of arms the reverse of a row is a row itself."""
    return count if count % 2 == 0 else 2 * count


def _first_row(count: int) -> list[int]:
    """0, 1, n - 1, 2, n - 2, ...: each difference between neighbours is there once, modulo n, in the row or in its reverse."""
    return [(place + 1) // 2 if place % 2 else -(place // 2) % count for place in range(count)]


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
    origins: Mapping[str, VariantOrigin],
    concurrency: int,
    own: Mapping[str, int] = MappingProxyType({}),
    *,
    in_sequence: bool = False,
) -> list[Block]:
    """Blocks of all rollouts; `origins` says what each variant is made of, the arms in their order.

    `concurrency` is the greatest number of rollouts in flight, `own` that of arms which have one of their own.
    No block has two trials of a scenario, so that a block which begins with an empty cache is a cold one. In a round of blocks all arms
    run the same scenarios, in the order of `order`. `in_sequence` runs all of one arm first, and then all of the next one.
    """
    arms = [*dict.fromkeys(side.arm for side in origins.values())]
    groups: dict[tuple[str, int], dict[tuple[str, str], dict[str, RolloutKey]]] = {}
    for key in keys:
        side = origins[key.variant]
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
