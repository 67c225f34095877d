"""Time budgets of calls and rollouts, and several taps, from the command line to the report."""

from __future__ import annotations

import pytest

from tests.project import Project

THINKER = """
import asyncio


class Thinker:
    async def run(self, scenario, llm, tools):
        await asyncio.sleep(3600)
"""

SLOW = {"text": "one two three four five six", "tokens_per_chunk": 1}


@pytest.mark.parametrize(
    ("rule", "option", "kind"),
    [
        ({**SLOW, "stall": {"after": 2, "ms": 60_000}}, "idle=0.2s", "timeout_idle"),
        pytest.param({**SLOW, "ttft_ms": 60_000}, "first-token=200ms", "timeout_first_token", marks=pytest.mark.slow),
        pytest.param({**SLOW, "itl_ms": 100}, "call=300ms", "timeout_call", marks=pytest.mark.slow),
    ],
)
def test_a_call_over_its_budget(project: Project, rule: dict[str, object], option: str, kind: str) -> None:
    """A call over its time budget makes the rollout an infra_error that names the budget.

    The rollout, not the call, is attempted again, and has no score.
    """
    project.backend([rule])
    project.suite(scenarios=1)
    result = project.run("scenarios/shop", f"--agentbench-budget-{option}", "--agentbench-retries=1")
    (rollout,) = project.rollouts
    (call,) = rollout.calls

    result.assert_outcomes(errors=1)
    assert ("infra_error", 2, {}) == (rollout.status, rollout.attempt, dict(rollout.scores))
    assert (kind, 1) == (call.error_kind, len(rollout.earlier_attempts))
    assert {kind: 2} == project.run_json["performance"]["failed_calls"]  # The call of the first attempt counts, too.
    result.stdout.fnmatch_lines([f"*{kind}*"])


@pytest.mark.slow
def test_the_rollouts_budget(project: Project) -> None:
    """--agentbench-budget-rollout overrides suite.yaml.

    A rollout that runs out of time while the agent is working ends as `limit` and is scored.
    """
    project.suite(scenarios=1, timeout=3600, thresholds={"tsq": 0.0}, agent={"kind": "./agent.py:Thinker"})
    project.write("scenarios/shop/agent.py", THINKER)
    project.run("scenarios/shop", "--agentbench-budget-rollout=300ms").assert_outcomes(passed=1)
    (rollout,) = project.rollouts

    assert ("limit", "time: the rollout took longer than 0.3 s") == (rollout.status, rollout.reason)


@pytest.mark.slow
def test_several_taps(project: Project) -> None:
    """Calls are distributed over several taps. No call is lost, and run.json has each tap."""
    project.suite(scenarios=30, trials=2)
    project.run("scenarios/shop", "--agentbench-taps=2", "--agentbench-concurrency=16").assert_outcomes(passed=60)
    run = project.run_json

    assert {"tap", "tap-2"} <= run["processes"].keys()
    assert (120, {}) == (run["performance"]["calls"], run["performance"]["failed_calls"])
    assert {"tap.log", "tap-2.log"} <= {path.name for path in (project.directory / "backend").iterdir()}


@pytest.mark.slow
def test_agents_that_do_not_stream(project: Project) -> None:
    """Calls of the built-in client are streamed and have a TTFT, unless the agent sets `stream_upgrade: false`."""
    project.suite(scenarios=1, variants={"whole": {"agent": {"stream_upgrade": False}}})
    project.run("scenarios/shop", "--agentbench-variants=all").assert_outcomes(passed=2)
    upgraded = {rollout.variant: [(call.upgraded, bool(call.chunks)) for call in rollout.calls] for rollout in project.rollouts}

    assert {"default": [(True, True)] * 2, "whole": [(False, False)] * 2} == upgraded
    assert 2 == project.run_json["performance"]["ttft_ms"]["n"]
