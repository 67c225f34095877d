"""If a server refuses a suite's requests, there is an ERROR with its message, no retry, and an early end."""

from __future__ import annotations

import pytest

from tests.project import FIND_THEN_ANSWER, WAYS, Project

NO_PARSER = {"status": 400, "message": '"auto" tool choice requires --tool-call-parser to be set'}
WORDS = f"HTTP 400: {NO_PARSER['message']}"


@WAYS
def test_a_server_that_is_set_up_wrongly(project: Project, way: tuple[str, ...]) -> None:
    """If a server refuses the first scenarios, each is attempted once, an ERROR has the server's message, and the session ends."""
    project.backend([NO_PARSER])
    project.suite(scenarios=40)

    result = project.run(*way, "scenarios/shop", "--agentbench-concurrency=2")

    assert (6, "NOT MEASURED") == (result.ret, project.run_json["verdict"])
    assert 1 <= result.parseoutcomes()["errors"] < 10
    assert 2 <= len(project.rollouts) < 10
    for rollout in project.rollouts:
        assert ("infra_error", WORDS, 1, {}) == (rollout.status, rollout.reason, rollout.attempt, rollout.scores)
    result.stdout.fnmatch_lines(
        [
            f"*{WORDS}; the server refused the first * scenarios of shop and answered no call, so no further scenario is tried*",
            f"*! *agentbench: nothing more can run: {WORDS}*",
        ]
    )


@pytest.mark.slow
def test_a_key_that_is_turned_down_by_chats_only(project: Project) -> None:
    """If only chats need a key, the first chats fail with the server's message and a hint where to set the key."""
    project.backend([{"status": 401, "message": "Incorrect API key"}])
    project.suite(scenarios=3)

    result = project.run("scenarios/shop")

    assert 6 == result.ret
    result.stdout.fnmatch_lines(["*infra_error: HTTP 401: Incorrect API key; no key was sent: `api_key_env` in a backend's YAML *"])


@pytest.mark.slow
def test_a_scenario_that_the_server_refuses(project: Project) -> None:
    """If the server refuses one scenario and answers others, only that scenario is an ERROR, without a retry.

    A later HTTP 404 is treated the same way.
    """
    lost = {"status": 404, "message": "The model `m` does not exist."}
    refusals = [
        {"match": {"contains": "shop-0:"}, **NO_PARSER},
        {"match": {"contains": "shop-1:", "turn": 1}, **lost},
        {"match": {"contains": "shop-2:", "turn": 1, "call": 1}, **NO_PARSER},
    ]
    project.backend([*refusals, *FIND_THEN_ANSWER])
    project.suite(scenarios=6)

    project.run("scenarios/shop", "--agentbench-concurrency=1").assert_outcomes(passed=4, errors=2)

    rollouts = {rollout.scenario: rollout for rollout in project.rollouts}
    assert ("infra_error", WORDS, 1) == (rollouts["shop-0"].status, rollouts["shop-0"].reason, rollouts["shop-0"].attempt)
    assert ("infra_error", f"HTTP 404: {lost['message']}", 1) == (
        rollouts["shop-1"].status,
        rollouts["shop-1"].reason,
        rollouts["shop-1"].attempt,
    )
    assert ("ok", 2) == (rollouts["shop-2"].status, rollouts["shop-2"].attempt)
