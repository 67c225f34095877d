"""The profile of a run: its slowest calls, call tree, spikes of concurrency, and shared prompt prefixes.

`read_profile` reads the journal once, with one rollout in memory at a time. The cost grows linearly with the number of calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_agentbench.metrics import performance
from pytest_agentbench.metrics.frame_reader import FrameReader
from pytest_agentbench.profile.prefixes import PromptReuse, PromptTrees
from pytest_agentbench.profile.slow_phases import Concurrency, Explanation, concurrency, explained
from pytest_agentbench.profile.tree import Branch, CallTree
from pytest_agentbench.tables import origins, places

SLOWEST = 10  # calls


@dataclass(frozen=True)
class Profile:
    """The results of profiling a run: what its report shows. Only the call tree has calls of judges and calls to other endpoints.

    Other endpoints are those of roles (models beside the backend under test).
    """

    calls: int  # calls of agents, in all attempts
    timed: int  # those with known times
    slowest: tuple[Explanation, ...]  # at most ten, the slowest first
    tree: tuple[Branch, ...]
    concurrency: Concurrency | None  # None if no call has a known time
    prompts: PromptReuse


def read_profile(directory: Path) -> Profile:
    """Reads the profile of a run directory. Raises ConfigError if it has no journal."""
    [origin] = origins([directory])
    reader, tree, prompts = FrameReader(origin, events=False), CallTree(), PromptTrees()
    for place in places(origin):
        reader.add_place(place)
        if place.rollout.kind == "scenario":
            tree.add(place.rollout)
            prompts.add(place.rollout)
    part = reader.frame().scenarios()
    own = part.calls.table.where(part.calls.mask)
    timed = own.where(own["ended_s"] > 0)  # False for NaN
    return Profile(
        len(own), len(timed), explained(own, performance.slowest(part, SLOWEST)), tree.branches(), concurrency(timed), prompts.reuse()
    )
