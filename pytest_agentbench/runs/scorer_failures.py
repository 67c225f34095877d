"""Causes for which scorers gave no score, counted while rollouts are read."""

from __future__ import annotations

from dataclasses import replace

from pytest_agentbench.lib.error_texts import cause_of
from pytest_agentbench.records import Rollout
from pytest_agentbench.runs.results import ScorerFailure

MOST = 10  # causes that a run keeps


class ScorerFailures:
    """Counts the failures of scorers by score and cause."""

    def __init__(self) -> None:
        self._causes: dict[tuple[str, str], ScorerFailure] = {}

    def add(self, rollout: Rollout) -> None:
        for score, error in rollout.score_errors.items():
            key = score, cause_of(error)
            known = self._causes.get(key)
            if known is None or rollout.scenario < known.first:
                self._causes[key] = ScorerFailure(score, error, (known.rollouts if known else 0) + 1, rollout.scenario)
            else:
                self._causes[key] = replace(known, rollouts=known.rollouts + 1)

    def summary(self) -> tuple[ScorerFailure, ...]:
        """Returns the most frequent causes, equal ones by their first scenario."""
        return tuple(sorted(self._causes.values(), key=lambda each: (-each.rollouts, each.first, each.score))[:MOST])
