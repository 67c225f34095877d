"""The nine configurations of the NeMo Agent Toolkit's example run as suites on the built-in engine."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.records import Rollout
from tests.nat_configs import CONFIGS, NINE, QUESTION, LimitedSession, has_data
from tests.project import Project

pytestmark = pytest.mark.slow


def test_all_nine_run(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each configuration is converted, and runs a limited session. Each rollout has a score, and is what the table in docs/ says."""
    project.shipped("banking")
    monkeypatch.chdir(project.root)
    for name in NINE:
        question = [] if has_data(name) else ["--input", QUESTION]
        shutil.copy(CONFIGS / f"{name}.yml", project.root)
        assert 0 == main(["import", "nat-config", f"{name}.yml", "--output", str(Path("converted", name)), *question])

    project.run("converted", "--agentbench-backend=embedded", "--agentbench-limit=1").assert_outcomes(passed=9, deselected=594)

    assert dict(NINE) == {rollout.suite: session_of(rollout) for rollout in project.rollouts}
    assert [] == [rollout.key for rollout in project.rollouts if rollout.status != "ok" or not rollout.scores]


def session_of(rollout: Rollout) -> LimitedSession:
    return LimitedSession(bool(rollout.tool_calls), bool(rollout.drafts))
