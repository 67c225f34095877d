"""Checks whether a pattern matches in the answer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_agentbench.records import Rollout, Score
from pytest_agentbench.scorers.declaration import scorer
from pytest_agentbench.scorers.matching import expected_answers

if TYPE_CHECKING:
    from pytest_agentbench.suites.suite import Scenario


@scorer(range=(0, 1))
def regex(scenario: Scenario, rollout: Rollout, *, pattern: str | list[str] | None = None, key: str = "answer") -> Score:
    """Returns 1.0 if a regular expression matches anywhere in the answer, otherwise 0.0.

    Options:
        pattern: A regular expression of Python, or a list of them, one of which has to match.
        key: Key of the regular expression in the scenario's `metadata`, if no option gives it.
    """
    patterns = [str(each) for each in expected_answers(scenario, pattern, key)]
    match = next((match for each in patterns if (match := re.search(each, rollout.answer))), None)
    if match is None:
        return Score(0.0, {}, f"nothing in the answer matches {' or '.join(map(repr, patterns))}")
    return Score(1.0, {}, f"found {match[0]!r}, which matches {match.re.pattern!r}")
