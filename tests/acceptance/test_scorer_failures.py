"""If a scorer raises, the end of the session names it and the place in the user's file, even if no test reads its score."""

from __future__ import annotations

import pytest

from pytest_agentbench.reports import suite_phrases
from pytest_agentbench.reports.document import Level
from tests.findings import report_of, said
from tests.project import Project

SCORERS = """
import json


def mistakes(scenario, rollout):
    return parsed(scenario)


def parsed(scenario):
    return json.loads(scenario.id)  # line 10
"""


@pytest.mark.parametrize("isolation", ["none", pytest.param("process", marks=pytest.mark.slow)])
def test_one_line_for_each_cause(project: Project, isolation: str) -> None:
    """Three rollouts with the same cause are one line in every report. The tests, which read another score, pass."""
    project.suite(scorers=["tsq", "./scorers.py:mistakes"], isolation=isolation)
    project.write("scenarios/shop/scorers.py", SCORERS)

    result = project.run("scenarios/shop")

    result.assert_outcomes(passed=3)
    (failure,) = project.run_json["suites"]["shop"]["scorer_failures"]
    assert ("mistakes", 3, "shop-0") == (failure["score"], failure["rollouts"], failure["first"])
    assert failure["error"].endswith("JSONDecodeError: Expecting value: line 1 column 1 (char 0) (scorers.py:10)")
    for level in (Level.FIRST_PAGE, Level.SUMMARY, Level.FULL, Level.VERBOSE):
        told = [each for (each,) in said(report_of(project.directory, level), suite_phrases.scorer_failure)]
        assert [("mistakes", 3, failure["error"], "shop-0")] == [(each.score, each.rollouts, each.error, each.first) for each in told]
    assert "(scorers.py:10)" in " ".join(result.stdout.str().split())
