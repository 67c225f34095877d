"""Scorers that gave no score: one line for each cause, in the terminal and in report.md."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_agentbench.reports.failure_section import brief
from pytest_agentbench.reports.markup import prose
from pytest_agentbench.runs.results import ScorerFailure, SuiteResult

SHOWN = 3  # causes in the terminal


def failure_text(failure: ScorerFailure) -> str:
    """Returns `3 rollouts: scorer mistakes failed: ValueError: no label (scorers.py:12), first in banking-003`."""
    rollouts = f"{failure.rollouts:,} rollout{'s' * (failure.rollouts > 1)}"
    return f"{rollouts}: scorer {failure.score} failed: {brief(failure.error)}, first in {failure.first}"


def lines(suite: SuiteResult) -> Iterator[str]:
    """Yields the most frequent causes, and how many others there are."""
    yield from map(failure_text, suite.scorer_failures[:SHOWN])
    if (more := len(suite.scorer_failures) - SHOWN) > 0:
        yield f"and {more} more cause{'s' * (more > 1)}, see report.md"


def markdown(suite: SuiteResult) -> Iterator[str]:
    """Yields a section with all causes that the run keeps; nothing if every scorer gave its scores."""
    if suite.scorer_failures:
        yield "\n### Scorers that failed\n"
        yield from (f"- {prose(failure_text(failure))}" for failure in suite.scorer_failures)
