"""Counting the results of tasks."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

from pytest_agentbench.records import LLMCall, Rollout, ToolCall
from pytest_agentbench.records.rollout import Verification
from pytest_agentbench.runs.tasks_and_mistakes import TaskFailure, TaskResult, Tasks, TasksSummary

SECOND = 10**9
CALL = LLMCall(0, 0, 0, prompt_tokens=100, completion_tokens=10)


def trial(scenario: str, number: int, reward: float, check: str = "", **changes: object) -> Rollout:
    """Returns a trial of four seconds with two commands of one second each and a verifier of three seconds."""
    commands = tuple(ToolCall("bash", {"command": "ls"}, turn, started_ns=turn * SECOND, ended_ns=(turn + 1) * SECOND) for turn in (1, 2))
    verification = Verification(reward, {"reward": reward}, first_failure=check, started_ns=4 * SECOND, ended_ns=7 * SECOND)
    rollout = Rollout(
        "bench", scenario, "default", number, "ok", ended_ns=4 * SECOND, calls=(CALL,), tool_calls=commands, verification=verification
    )
    return replace(rollout, **changes)  # type: ignore[arg-type]


def summary(*rollouts: Rollout) -> TasksSummary | None:
    tasks = Tasks()
    for rollout in rollouts:
        tasks.add(rollout)
    return tasks.summary()


def test_results() -> None:
    """Each task has counts and means over its verified trials."""
    result = summary(
        trial("a", 1, 1.0),
        trial("a", 2, 0.5, "test_port", tool_calls=(), calls=(CALL, CALL)),
        trial("a", 3, 0.0, status="infra_error", verification=None),
        trial("b", 1, 1.0, calls=(LLMCall(0, 0, 0),)),
    )

    assert result is not None
    assert (
        TaskResult("a", trials=2, solved=1, reward=0.75, commands=1.0, tokens=165.0, seconds=4.0, sandbox_s=1.0, verifier_s=3.0),
        TaskResult("b", trials=1, solved=1, reward=1.0, commands=2.0, tokens=None, seconds=4.0, sandbox_s=2.0, verifier_s=3.0),
    ) == result.tasks


def test_failures() -> None:
    """Failures are counted by the end of the agent and the first failed check, independent of the order of ending."""
    rollouts = (
        trial("a", 1, 0.0, "test_port"),
        trial("b", 1, 0.0, "test_port"),
        trial("c", 1, 0.5, "test_port", status="limit", reason="iterations: 10 were not enough"),
        trial("d", 1, 0.0, status="agent_error", verification=None),
        trial("e", 1, 1.0),
    )
    expected = (
        TaskFailure("ok", "test_port", 2, ("a", "b")),
        TaskFailure("agent_error", "", 1, ("d",)),
        TaskFailure("limit: iterations", "test_port", 1, ("c",)),
    )

    for order in permutations(rollouts):
        result = summary(*order)

        assert result is not None
        assert expected == result.failures


def test_no_tasks() -> None:
    """A suite without verified trials has no results of tasks."""
    assert summary(trial("a", 1, 0.0, status="agent_error", verification=None)) is None
