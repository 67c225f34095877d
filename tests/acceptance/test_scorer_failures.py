"""A scorer that raises, although no test reads its score: the end of the session names it, and the place in the user's file."""

from __future__ import annotations

import pytest

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
    """Three rollouts and one cause are one line, in the terminal and in report.md; the tests, which read another score, pass."""
    project.suite(scorers=["tsq", "./scorers.py:mistakes"], isolation=isolation)
    project.write("scenarios/shop/scorers.py", SCORERS)

    result = project.run("scenarios/shop")

    result.assert_outcomes(passed=3)
    (failure,) = project.run_json["suites"]["shop"]["scorer_failures"]
    assert ("mistakes", 3, "shop-0") == (failure["score"], failure["rollouts"], failure["first"])
    assert failure["error"].endswith("JSONDecodeError: Expecting value: line 1 column 1 (char 0) (scorers.py:10)")
    line = f"3 rollouts: scorer mistakes failed: {failure['error']}, first in shop-0"
    assert f"no score {line}" in " ".join(result.stdout.str().split())
    report = (project.directory / "report.md").read_text()
    assert f"### Scorers that failed\n\n- {line}\n" in report
