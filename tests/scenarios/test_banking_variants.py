"""The variants of the banking suite, each run on the embedded engine."""

from __future__ import annotations

import pytest

from tests.project import Project

#: Variant -> number of scenarios that it runs with a limit of five, and the agent's kind.
VARIANTS = {
    "default": (5, "tool_calling"),
    "react": (5, "react"),
    "rethinking": (5, "self_evaluating_with_feedback"),
    "executed": (5, "tool_calling"),
    "minimal": (3, "react"),
}


@pytest.mark.slow
def test_all_variants_run(project: Project) -> None:
    """`--agentbench-variants all` runs every variant. `minimal` runs three scenarios, which are too few for a verdict on its mean."""
    project.shipped("banking")
    quick = ("--agentbench-set", "backend.ttft_ms=0", "--agentbench-set", "backend.itl_ms=0")
    project.run("scenarios/banking", "--agentbench-variants", "all", "--agentbench-limit", "5", *quick, "--agentbench-threshold=tsq=0")

    ran: dict[str, list[str]] = {}
    for rollout in project.rollouts:
        assert ("ok", VARIANTS[rollout.variant][1]) == (rollout.status, rollout.settings["kind"]), rollout.reason
        assert 0 < rollout.score("tsq") <= 1
        ran.setdefault(rollout.variant, []).append(rollout.scenario)
    assert {name: count for name, (count, _) in VARIANTS.items()} == {name: len(scenarios) for name, scenarios in ran.items()}
    assert sorted(ran["react"])[:3] == sorted(ran["minimal"])
    drafts = [len(rollout.drafts) for rollout in project.rollouts if rollout.variant == "rethinking"]
    assert all(1 <= number <= 6 for number in drafts) and max(drafts) > 1
    (mean,) = [rule for rule in project.run_json["gate"]["rules"] if rule["suite"] == "banking-minimal"]
    assert "INCONCLUSIVE" == mean["verdict"]
