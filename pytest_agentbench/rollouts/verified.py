"""A rollout of a task, verified once its agent is done."""

from __future__ import annotations

import dataclasses

from pytest_agentbench.errors import RolloutError
from pytest_agentbench.records import Rollout
from pytest_agentbench.sandbox.sandbox import Sandbox
from pytest_agentbench.sandbox.verifier import verify
from pytest_agentbench.suites.task import Task


async def verified(rollout: Rollout, task: Task | None, sandbox: Sandbox | None) -> Rollout:
    """The rollout with what the verifier says; also where its agent ran into a limit, and not where it failed or measured nothing.

    One that cannot be verified has another status and the reason.
    """
    if task is None or sandbox is None or not rollout.evaluable:
        return rollout
    try:
        return dataclasses.replace(rollout, verification=await verify(sandbox, task))
    except RolloutError as error:
        return dataclasses.replace(rollout, status=error.status, reason=str(error))


def agents_time(seconds: float | None, task: Task | None) -> float | None:
    """Seconds that an agent has: as long as a rollout may take, and no longer than its task says; None: no limit."""
    limits = [each for each in (seconds, task.agent_timeout_s if task else None) if each is not None]
    return min(limits, default=None)
