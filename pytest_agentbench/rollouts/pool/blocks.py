"""Arranges the rollouts of an A/B session in blocks of one arm (a setting under comparison).

The arms alternate in a balanced order, so that drift during a session affects all arms alike.
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
    """Returns the order of `count` arms in round `number`, both counted from 0. In a round, each arm has one block.

    Two arms run as AB BA BA AB. The orders, or rows, are those of Williams (1949, Australian Journal of Scientific Research A 2:149). In a
    whole cycle, which has `cycle(count)` rounds, each arm is equally often at each place, and equally often directly after each other arm.
    Each row is followed by its reverse, so that steady drift cancels out in every two rounds, and no switch of arms is needed between them.
    Every other cycle has the reverse of each row first. So load that alternates from round to round does not always meet the same order.
    """
    turn, place = divmod(number, cycle(count))
    row, second = divmod(place, 2)
    arms = tuple((arm + row) % count for arm in _first_row(count))
    return arms[::-1] if (turn + second) % 2 else arms


def cycle(count: int) -> int:
    """Returns the number of rounds after which the order of `count` arms is balanced: `count` if it is even, otherwise twice that.

    Each row (the order of the arms in one round) must also occur in reverse. If `count` is even, the reverse of a row is another row.
    """
    return count if count % 2 == 0 else 2 * count


def _first_row(count: int) -> list[int]:
    """Returns the order of n = `count` arms from which `order` makes all others: 0, 1, n - 1, 2, n - 2, ...

    Each difference between neighbours, modulo n, occurs once, in this order or in its reverse.
    """
    return [(place + 1) // 2 if place % 2 else -(place // 2) % count for place in range(count)]


#: Rollouts of a block, divided by its concurrency. The end of a block, when few rollouts are in flight, is then a small part of it.
WAVES = 4
#: Minimum number of rounds. If there would be fewer, blocks get shorter, down to one rollout for each one in flight.
ROUNDS = 10

BlockTasks = list[dict[str, RolloutKey]]  # arm -> rollout of the same scenario and trial


@dataclass(frozen=True)
class Block:
    """Rollouts of one arm that run without rollouts of other arms in between."""

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
    """Returns the blocks of all rollouts.

    No block has two trials (repetitions) of a scenario, so a block that begins with an empty cache is entirely cold. In a round of blocks
    all arms run the same scenarios; `order` gives the order of the arms.

    Args:
        keys: The rollouts.
        origins: Variant -> suite's own variant and arm. Their order is that of the arms.
        concurrency: Maximum number of rollouts in flight.
        own: Arm -> maximum number of rollouts in flight, for arms that have one of their own.
        in_sequence: Whether all blocks of one arm run before those of the next arm.
    """
    arms = [*dict.fromkeys(side.arm for side in origins.values())]
    groups: dict[tuple[str, int], dict[tuple[str, str], dict[str, RolloutKey]]] = {}
    for key in keys:
        side = origins[key.variant]
        groups.setdefault((side.variant, key.trial), {}).setdefault((key.suite, key.scenario), {})[side.arm] = key
    fewest = 2 if len(arms) > 1 and len(groups) == 1 else 1
    minimum = math.ceil(ROUNDS / max(1, len(groups)))
    chunks = [
        chunk
        for tasks in groups.values()
        for chunk in _chunks([*tasks.values()], _count(len(tasks), concurrency, minimum, fewest) if len(arms) > 1 else 1)
    ]
    blocks = [
        Block(arm, tuple(task[arm] for task in chunk if arm in task), own.get(arm, concurrency))
        for number, chunk in enumerate(chunks)
        for arm in (arms[place] for place in order(len(arms), number))
    ]
    if in_sequence:
        blocks.sort(key=lambda block: arms.index(block.arm))
    return [block for block in blocks if block.keys]


def _count(tasks: int, concurrency: int, minimum: int, fewest: int) -> int:
    """Returns the number of rounds (one block of each arm) into which `tasks` rollouts of each arm are split.

    The number is at least `fewest`, and so great that no block has more than WAVES * `concurrency` rollouts. It is also at least
    `minimum`, unless a block would then have fewer than `concurrency` rollouts.
    """
    return max(fewest, math.ceil(tasks / (WAVES * concurrency)), min(minimum, tasks // concurrency))


def _chunks(tasks: BlockTasks, count: int) -> list[BlockTasks]:
    """Splits a list into `count` parts of nearly the same size."""
    ends = [len(tasks) * number // count for number in range(count + 1)]
    return [tasks[start:end] for start, end in itertools.pairwise(ends)]
