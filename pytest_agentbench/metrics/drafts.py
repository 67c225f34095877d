"""What judging came to in a suite: drafts per rollout, how many were accepted, and what the choice brought."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_agentbench.metrics.frame import Slice


@dataclass(frozen=True)
class DraftMeans:
    """A score over the rollouts whose first and whose chosen draft have it."""

    rollouts: int  # what the means are over
    first: float  # mean of the first drafts
    chosen: float  # mean of those that count


@dataclass(frozen=True)
class DraftsSummary:
    """Drafts of an agent that [judges itself](judges.md)."""

    rollouts: int  # with drafts
    drafts: int  # of all of them
    accepted: int  # rollouts with an accepted draft
    scores: Mapping[str, DraftMeans]  # score -> means


def drafts_of(part: Slice) -> DraftsSummary | None:
    """Returns how the drafts of a slice were judged. None if there were none."""
    counts = part.rollouts["drafts"]
    names, first, chosen = (part.drafts[column] for column in ("score", "first", "chosen"))
    scores = {
        name: DraftMeans(int(own.sum()), float(first[own].mean()), float(chosen[own].mean()))
        for name in sorted(set(names.tolist()))
        for own in [names == name]
    }
    rollouts, accepted = int((counts > 0).sum()), int(part.rollouts["is_accepted"].sum())
    return DraftsSummary(rollouts, int(counts.sum()), accepted, scores) if rollouts else None
