"""The main use: a suite runs as tests against a real endpoint, in one process and with workers, and leaves a run directory."""

from __future__ import annotations

from tests.project import WAYS, Project


@WAYS
def test_a_suite_runs(project: Project, way: tuple[str, ...]) -> None:
    """Every scenario is a test, is scored from the agent's calls, and is in the journal with its timings."""
    project.suite(scenarios=3)

    result = project.run(*way, "scenarios/shop")

    result.assert_outcomes(passed=3)
    assert {"shop-0", "shop-1", "shop-2"} == {rollout.scenario for rollout in project.rollouts}
    for rollout in project.rollouts:
        assert ("ok", ["find_item"], 1.0) == (rollout.status, rollout.tools, rollout.score("tsq"))
        assert 2 == len(rollout.calls)
    assert 1.0 == project.run_json["suites"]["shop"]["scores"]["tsq"]["mean"]["value"]
    assert (project.directory / "report.md").is_file()
