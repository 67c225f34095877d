"""Checks whether the answer is the expected text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.records import Rollout, Score
from pytest_agentbench.scorers.declaration import scorer
from pytest_agentbench.scorers.matching import expected_answers

if TYPE_CHECKING:
    from pytest_agentbench.suites.suite import Scenario


@scorer(range=(0, 1))
def exact(
    scenario: Scenario, rollout: Rollout, *, answer: str | list[str] | None = None, key: str = "answer", ignore_case: bool = False
) -> Score:
    """Returns 1.0 if the answer without outer spaces is one of the expected texts, otherwise 0.0.

    Options:
        answer: The expected text, or a list of them.
        key: Key of the expected answer in the scenario's `metadata`, if no option gives it.
        ignore_case: Whether case is ignored.
    """
    expected = [str(each).strip() for each in expected_answers(scenario, answer, key)]
    actual = rollout.answer.strip()
    right = actual in expected or (ignore_case and actual.casefold() in [each.casefold() for each in expected])
    shown = beginning(actual, 200)
    return Score(float(right), {}, f"the answer is {shown!r}, expected {' or '.join(map(repr, expected))}")
