"""What the scorers of the answer's text share: where the expected answer comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_agentbench.suites.suite import Scenario


def expected_answers(scenario: Scenario, answer: Any, key: str) -> list[Any]:
    """The answers that are right: the option's, or those that the scenario's metadata have under `key`; a list means any of them.

    Raises LookupError when there are none: an answer that nobody knows is no reason for a score of 0.
    """
    expected = scenario.metadata.get(key) if answer is None else answer
    answers = expected if isinstance(expected, list) else [expected]
    if not answers or any(each is None for each in answers):
        raise LookupError(f"scenario {scenario.id} has no expected answer: its metadata have no {key!r}, and no option gives one")
    return answers
