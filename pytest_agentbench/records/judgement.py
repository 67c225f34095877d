"""Decides which thresholds a rollout misses. Tests, reports and `agentbench show` use this decision."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_agentbench.records.rollout import Rollout, Scale, scale_in


def scenario_thresholds(thresholds: Mapping[str, float]) -> dict[str, float]:
    """Returns the thresholds that hold for each scenario, which tests apply: `tsq: 0.5`, but not `tsq.mean: 0.8`, which is a rule."""
    return {name: limit for name, limit in thresholds.items() if name.rpartition(".")[2] != "mean"}


def missed_scores(rollout: Rollout, thresholds: Mapping[str, float], scales: Mapping[str, Scale]) -> list[str]:
    """Returns the scores of a rollout that are worse than their threshold for each scenario, or missing, in the order of `thresholds`."""
    return [name for name, limit in scenario_thresholds(thresholds).items() if _misses(rollout, name, limit, scale_in(scales, name))]


def _misses(rollout: Rollout, name: str, limit: float, scale: Scale) -> bool:
    return name not in rollout.scores or scale.loss(rollout.scores[name]) > scale.loss(limit)
