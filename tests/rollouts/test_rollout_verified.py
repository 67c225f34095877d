"""The time limit of an agent, and which rollouts are verified."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_agentbench.records import Rollout
from pytest_agentbench.rollouts.rollout import agent_time_limit, verified
from pytest_agentbench.suites.suite import Task
from tests.sandbox.local import LocalSandbox


@pytest.mark.parametrize(
    ("seconds", "of_task", "expected"),
    [(600.0, 900.0, 600.0), (600.0, 30.0, 30.0), (600.0, None, 600.0), (None, 30.0, 30.0), (None, None, None)],
)
def test_the_time_of_an_agent(seconds: float | None, of_task: float | None, expected: float | None) -> None:
    """An agent may take as long as its task says, but no longer than a rollout."""
    assert expected == agent_time_limit(seconds, Task("/nowhere", "", agent_timeout_s=of_task))
    assert seconds == agent_time_limit(seconds, None)


@pytest.mark.parametrize("status", ["agent_error", "infra_error", "cancelled"])
async def test_rollouts_that_are_not_verified(tmp_path: Path, status: str) -> None:
    """A rollout that failed, or measured nothing, is not verified, and its sandbox is not used."""
    rollout = Rollout("bench", "a", "default", 1, status)

    assert rollout is await verified(rollout, Task("/nowhere", ""), LocalSandbox(tmp_path))


async def test_no_task() -> None:
    """A rollout without a sandbox is not changed."""
    rollout = Rollout("bench", "a", "default", 1, "ok")

    assert rollout is await verified(rollout, None, None)
