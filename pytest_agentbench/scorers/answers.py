"""Finds the expected answers of a scenario, for the scorers that compare the text of the agent's answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_agentbench.suites.suite import Scenario


def expected_answers(scenario: Scenario, answer: Any, key: str) -> list[Any]:
    """Returns the right answers: `answer`, an option of the scorer, or the value of `key` in the scenario's metadata. A list has several.

    Raises LookupError if there are none, so that the rollout gets no score instead of 0.
    """
    expected = scenario.metadata.get(key) if answer is None else answer
    answers = expected if isinstance(expected, list) else [expected]
    if not answers or any(each is None for each in answers):
        option = "or set the scorer's option, `answer` of exact and numeric or `pattern` of regex"
        raise LookupError(f"scenario {scenario.id} has no expected answer; add {key!r} to its metadata, {option}")
    return answers
