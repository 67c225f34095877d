"""What judging came to in a suite: drafts per rollout, how many were accepted, what the choice brought, and what judges cost."""

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


@dataclass(frozen=True)
class JudgeCost:
    """What judges of agents and scorers cost."""

    calls: int
    failed_calls: int  # of them, those that failed
    prompt_tokens: int
    output_tokens: int
    seconds: float  # all calls together


@dataclass
class Drafts:
    """Counts over the rollouts whose agent judges its own work, and over the judge calls of all."""

    rollouts: int = 0
    drafts: int = 0
    accepted: int = 0  # rollouts with an accepted draft
    pairs: defaultdict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))  # score -> (first, chosen)
    calls: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    took_ns: int = 0

    def add(self, rollout: Rollout) -> None:
        if rollout.drafts:
            self._add_drafts(rollout)
        for call in (call for attempt in rollout.attempts for call in attempt.judge_calls):
            self.calls += 1
            self.failed += call.error_kind is not None
            self.prompt_tokens += call.prompt_tokens or 0
            self.output_tokens += call.completion_tokens or 0
            self.took_ns += call.ended_ns - call.received_ns

    def _add_drafts(self, rollout: Rollout) -> None:
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

    def cost(self) -> JudgeCost | None:
        """None where no judge was asked."""
        tokens = self.prompt_tokens, self.output_tokens
        return JudgeCost(self.calls, self.failed, *tokens, self.took_ns / 1e9) if self.calls else None


def _scores_of_chosen(drafts: tuple[Draft, ...]) -> Mapping[str, Score]:
    return next((draft.scores for draft in drafts if draft.chosen), {})


def _means(pairs: list[tuple[float, float]]) -> DraftMeans:
    """Over the same rollouts, those whose first and whose chosen draft have the score."""
    first, chosen = (sum(values) / len(pairs) for values in zip(*pairs, strict=True))
    return DraftMeans(len(pairs), first, chosen)
