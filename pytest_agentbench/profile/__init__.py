"""Where the time of a run went: its slowest calls, its call tree, spikes of concurrency, and prompts that begin alike.

A journal is read once, a rollout at a time, when somebody asks; what that takes grows linearly with the calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_agentbench.metrics import slow_calls
from pytest_agentbench.metrics.frame_reader import FrameReader
from pytest_agentbench.profile.prefixes import PromptReuse, PromptTrees
from pytest_agentbench.profile.slow_phases import Concurrency, Explanation, concurrency, explained
from pytest_agentbench.profile.tree import Branch, CallTree
from pytest_agentbench.tables import origins, places

SLOWEST = 10  # calls


@dataclass(frozen=True)
class Profile:
    """Of a run's scenarios; calls that went elsewhere, and those of judges, are in its tree alone."""

    calls: int  # of agents, in all attempts
    timed: int  # of them, those of which somebody knows when they were
    slowest: tuple[Explanation, ...]  # ten at most, the slowest first
    tree: tuple[Branch, ...]
    concurrency: Concurrency | None  # None without a call whose time is known
    prompts: PromptReuse


def read_profile(directory: Path) -> Profile:
    """The profile of a run directory; raises ConfigError for one without a journal."""
    [origin] = origins([directory])
    reader, tree, prompts = FrameReader(origin, events=False), CallTree(), PromptTrees()
    for place in places(origin):
        reader.add_place(place)
        if place.rollout.kind == "scenario":
            tree.add(place.rollout)
            prompts.add(place.rollout)
    part = reader.frame().scenarios()
    own = part.calls.table.where(part.calls.mask)
    timed = own.where(own["ended_s"] > 0)  # which does not hold of NaN
    return Profile(
        len(own), len(timed), explained(own, slow_calls.slowest(part, SLOWEST)), tree.branches(), concurrency(timed), prompts.reuse()
    )
