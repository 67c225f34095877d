"""Agents that need roles, with suites and backends that configure them or do not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.project import Project

ORCHESTRATOR = {"kind": "orchestrator", "run_code": False}
FAR = {"url": "http://127.0.0.1:9/v1", "model": "expert", "api_key": "EXPERTS_KEY"}


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        (
            {},
            (
                "needs the role 'answer': no endpoint is configured for it; "
                "add it to `roles` in suite.yaml or in the YAML of backend 'embedded'"
            ),
        ),
        ({"roles": {"answer": {}}}, "needs the role 'reasoner': no endpoint is configured for it; *"),
        (
            {"roles": {"answer": FAR, "reasoner": {}}},
            "needs the role 'answer': http://127.0.0.1:9/v1 needs an API key: the environment variable EXPERTS_KEY is not set",
        ),
    ],
    ids=["none", "one", "no key"],
)
def test_a_role_is_missing(project: Project, keys: dict[str, Any], why: str) -> None:
    """If a role is missing, the suite is an ERROR with the reason, and nothing starts."""
    project.suite(agent=ORCHESTRATOR, scenarios=1, **keys)

    result = project.run("scenarios/shop")

    result.assert_outcomes(errors=1)
    assert not (project.root / "reports").exists()
    result.stdout.fnmatch_lines([f"*scenarios/shop/suite.yaml: agent: 'orchestrator' {why}"])


def test_a_role_at_the_backends_own_address(project: Project) -> None:
    """A role at the backend's URL uses the backend's key, so its own key need not be set."""
    project.suite(agent=ORCHESTRATOR, scenarios=1, roles={"answer": FAR, "reasoner": {}})
    project.write("backends/far.yaml", "kind: url\nurl: http://127.0.0.1:9/v1/\n")

    result = project.run("scenarios/shop", "--agentbench-backend=far")

    result.stdout.no_fnmatch_line("*needs an API key*")
    result.stdout.fnmatch_lines(["*the backend 'far' is not available: *"])


def test_tests_are_collected_without_keys(project: Project) -> None:
    """--collect-only needs no keys, but a role without an endpoint is an error."""
    project.suite(agent=ORCHESTRATOR, scenarios=1, roles={"answer": FAR, "reasoner": {}})
    keyless = project.run("scenarios/shop", "--collect-only")
    project.suite(agent=ORCHESTRATOR, scenarios=1)
    unplayed = project.run("scenarios/shop", "--collect-only")

    assert (0, 4) == (keyless.ret, unplayed.ret)


@pytest.mark.parametrize("keys", [{"context_length": 16384}, {"max_model_len": 16384}])
def test_prompts_that_can_never_fit(project: Project, keys: dict[str, Any]) -> None:
    """An agent whose prompt budget exceeds the model's context length is refused before anything starts, with both numbers."""
    project.suite(agent=ORCHESTRATOR, scenarios=1, roles={"answer": {}, "reasoner": {}})
    project.backend([{"text": "Nothing to do."}], **keys)

    result = project.run("scenarios/shop")

    result.assert_outcomes(errors=1)
    assert not (project.root / "reports").exists()
    result.stdout.fnmatch_lines(["*suite.yaml: agent: context_tokens is 27000, and the model accepts 16384 tokens of prompt and answer *"])


@pytest.mark.slow
def test_backend_and_arms(project: Project) -> None:
    """Roles of the backend's YAML override those of the suite. In an A/B session each arm is checked."""
    project.suite(agent=ORCHESTRATOR, scenarios=1, roles={"answer": FAR})
    project.backend([{"text": "Nothing to do."}], roles={"answer": {}, "reasoner": {}})
    project.backend([{"text": "Nothing to do."}], name="bare")

    alone = project.run("scenarios/shop", "--agentbench-set", "agent.max_rounds=1")
    both = project.run("scenarios/shop", "--agentbench-ab=embedded,bare")

    assert "limit" == project.rollouts[0].status, alone.stdout.str()
    both.stdout.fnmatch_lines(["*needs the role 'answer': http://127.0.0.1:9/v1 needs an API key: *EXPERTS_KEY is not set"])
    both.assert_outcomes(errors=1)


@pytest.mark.slow
def test_a_suite_that_the_arms_leave_out(project: Project) -> None:
    """In an A/B session a suite that -m excludes has no arms, and the roles of its agent are not checked."""
    project.suite(scenarios=1)
    project.suite("bank", scenarios=1)

    result = project.run("scenarios", "-m", "shop", "--agentbench-ab=x=embedded,y=embedded")

    result.assert_outcomes(passed=2, deselected=1)


def test_thresholds_are_for_suites_that_run(project: Project) -> None:
    """A threshold of the command line does not apply to a suite that -m excludes, even if a suite that -m names cannot run."""
    project.suite(scenarios=1)
    project.suite("broken", scenarios=1, scorers=["tqs"])
    project.suite("bank", scenarios=1, scorers=["exact"], thresholds={})

    result = project.run("scenarios", "-m", "shop or broken", "--agentbench-threshold", "tsq=0.4")

    result.stdout.fnmatch_lines(["*scenarios/broken/suite.yaml: no scorer 'tqs' (did you mean 'tsq'?); known: *"])
    result.stdout.no_fnmatch_line("*does not measure this score*")
