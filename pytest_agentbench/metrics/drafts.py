"""What judging came to in a suite: drafts per rollout, how many were accepted, and what the choice brought."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_agentbench.records import Draft, Rollout, Score


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


@dataclass
class DraftCounts:
    """Counts over the rollouts whose agent judges its own work."""

    rollouts: int = 0
    drafts: int = 0
    accepted: int = 0  # rollouts with an accepted draft
    pairs: defaultdict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))  # score -> (first, chosen)

    def add(self, rollout: Rollout) -> None:
        if not rollout.drafts:
            return
        self.rollouts += 1
        self.drafts += len(rollout.drafts)
        self.accepted += any(draft.accepted for draft in rollout.drafts)
        first, chosen = rollout.drafts[0].scores, _scores_of_chosen(rollout.drafts)
        for name in first.keys() & chosen.keys():
            self.pairs[name].append((float(first[name]), float(chosen[name])))

    def summary(self) -> DraftsSummary | None:
        """None where there were no drafts."""
        scores = {name: _means(pairs) for name, pairs in sorted(self.pairs.items())}
        return DraftsSummary(self.rollouts, self.drafts, self.accepted, scores) if self.rollouts else None


def _scores_of_chosen(drafts: tuple[Draft, ...]) -> Mapping[str, Score]:
    return next((draft.scores for draft in drafts if draft.chosen), {})


def _means(pairs: list[tuple[float, float]]) -> DraftMeans:
    """Over the same rollouts, those whose first and whose chosen draft have the score."""
    first, chosen = (sum(values) / len(pairs) for values in zip(*pairs, strict=True))
    return DraftMeans(len(pairs), first, chosen)
