"""Causes of missing scores, counted by rollout."""

from __future__ import annotations

from pytest_agentbench.records import Rollout
from pytest_agentbench.runs.results import ScorerFailure
from pytest_agentbench.runs.tally import ScorerFailures


def test_one_entry_for_each_cause() -> None:
    """Rollouts are counted by score and cause. The most frequent cause comes first, with the error of its first scenario."""
    failures = ScorerFailures()
    for scenario, errors in {
        "s-2": {"mine": "KeyError: 's-2' (scorers.py:5)", "other": "judge_error: no"},
        "s-1": {"mine": "KeyError: 's-1' (scorers.py:5)"},
        "s-3": {"mine": "ValueError: x (scorers.py:9)"},
    }.items():
        failures.add(Rollout("shop", scenario, "default", 1, status="ok", score_errors=errors))

    assert (
        ScorerFailure("mine", "KeyError: 's-1' (scorers.py:5)", 2, "s-1"),
        ScorerFailure("other", "judge_error: no", 1, "s-2"),
        ScorerFailure("mine", "ValueError: x (scorers.py:9)", 1, "s-3"),
    ) == failures.summary()
