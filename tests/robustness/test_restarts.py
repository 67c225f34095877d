"""A pool, a tap or an engine that dies is started again: the session goes on, and ends with every rollout measured once."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable

import pytest

from tests.project import FIND_THEN_ANSWER, WAYS, Project
from tests.robustness.processes import Background, is_alive, wait_for

pytestmark = pytest.mark.timeout(240)

Start = Callable[..., Background]

PARTS = ("pool", "tap", "engine")


def shop(project: Project, scenarios: int, ttft_ms: float = 100) -> None:
    """A suite whose rollouts all pass, on an engine that takes its time."""
    project.suite(scenarios=scenarios)
    project.backend([{"ttft_ms": ttft_ms, **rule} for rule in FIND_THEN_ANSWER])


def kill(background: Background, part: str) -> None:
    """By SIGKILL; returns when it is gone."""
    pid = wait_for(lambda: background.children(f"pytest_agentbench.{part}"), f"the {part}")[0]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(pid), f"the end of the {part}")


@WAYS
@pytest.mark.parametrize("part", PARTS)
def test_one_death(project: Project, start: Start, part: str, way: tuple[str, ...]) -> None:
    """The session goes on: all tests pass, every rollout has one record, the report counts what was interrupted, no retry is spent."""
    shop(project, 16)
    background = start(*way, "--agentbench-concurrency=4", "--agentbench-retries=0", "scenarios/shop")
    background.in_the_middle(finished=3)

    kill(background, part)

    assert 0 == background.ended(90), background.output
    assert "16 passed" in background.output
    assert dict.fromkeys((f"shop-{number}" for number in range(16)), 1) == Counter(each.scenario for each in background.rollouts)
    run = json.loads((background.directory / "run.json").read_text())
    assert {part: 1} == run["interruptions"]["deaths"]
    assert run["interruptions"]["attempts"] == sum(len(each.earlier_attempts) for each in background.rollouts)
    assert f"interrupted {part} 1; " in background.output
    assert not [pid for pid in background.seen if is_alive(pid)]


DEADLY = """
import os
import signal

from pytest_agentbench.agents.tool_calling import ToolCalling


class Deadly(ToolCalling):
    async def run(self, scenario, llm, tools):
        answer = await super().run(scenario, llm, tools)
        if scenario.id == "shop-5":
            os.kill(os.getpid(), signal.SIGKILL)
        return answer
"""


@WAYS
def test_a_rollout_that_kills_the_pool(project: Project, way: tuple[str, ...]) -> None:
    """It is singled out, ends as agent_error with the signal, with all of its attempts and calls, and all the others are measured."""
    project.suite(scenarios=16, agent={"kind": "./agent.py:Deadly"})
    project.write("scenarios/shop/agent.py", DEADLY)

    result = project.run(*way, "--agentbench-concurrency=4", "scenarios/shop")

    result.assert_outcomes(passed=15, failed=1)
    rollouts = {rollout.scenario: rollout for rollout in project.rollouts}
    assert 16 == len(rollouts) == len(project.rollouts)
    deadly = rollouts.pop("shop-5")
    assert {"ok"} == {rollout.status for rollout in rollouts.values()}
    why = "it ends its process (signal 9): the pool died 3 times while it ran, the last time with nothing else in flight"
    assert ("agent_error", why) == (deadly.status, deadly.reason)
    assert ["interrupted: the pool died (exit code -9)"] * 2 == [attempt.reason for attempt in deadly.earlier_attempts]
    assert [2, 2, 2] == [len(attempt.calls) for attempt in deadly.attempts]
    assert {"pool": 3} == project.run_json["interruptions"]["deaths"]
    assert 1 == project.run_json["exit_status"]
