"""Finds the expected answer, for the scorers that compare the answer's text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_agentbench.suites.suite import Scenario


def expected_answers(scenario: Scenario, answer: Any, key: str) -> list[Any]:
    """Returns the right answers: those of the option, or of the scenario's metadata under `key`. Any answer in a list is right.

    Raises LookupError if there are none, so that the rollout gets no score instead of 0.
    """
    expected = scenario.metadata.get(key) if answer is None else answer
    answers = expected if isinstance(expected, list) else [expected]
    if not answers or any(each is None for each in answers):
        raise LookupError(f"scenario {scenario.id} has no expected answer: its metadata have no {key!r}, and no option gives one")
    return answers
