"""Suites whose agent is a program, from the YAML to the report, compared with the built-in agent."""

from __future__ import annotations

import json
import signal
import sys

import pytest

from pytest_agentbench.records import Json
from tests.labelled_router import routing
from tests.plain_agent import PLAIN
from tests.project import FIND_THEN_ANSWER, Project


def command(**settings: object) -> Json:
    return {"kind": "command", "program": [sys.executable, "agent.py"], **settings}


def test_a_program_is_an_agent_like_any_other(project: Project) -> None:
    """A program makes the same calls and gets the same scores as the built-in agent.

    Its record also has the program's exit code and log.
    """
    project.suite(variants={"plain": {"agent": command()}})
    project.write("scenarios/shop/agent.py", PLAIN)

    result = project.run("scenarios/shop", "--agentbench-variants=all")

    result.assert_outcomes(passed=6)
    builtin, plain = ([each for each in project.rollouts if each.variant == variant] for variant in ("default", "plain"))
    for mine, theirs in zip(*(sorted(each, key=lambda rollout: rollout.scenario) for each in (builtin, plain)), strict=True):
        assert [(call.name, call.arguments, call.turn) for call in mine.tool_calls] == [
            (call.name, call.arguments, call.turn) for call in theirs.tool_calls
        ]
        assert (mine.answer, mine.scores, len(mine.calls)) == (theirs.answer, theirs.scores, len(theirs.calls))
        assert (mine.programs, [0]) == ((), [program.exit_code for program in theirs.programs])
        assert [message["role"] for message in mine.messages if message["role"] != "system"] == [each["role"] for each in theirs.messages]
        assert "a line for the log\n" == theirs.log


@pytest.mark.slow
def test_programs_have_a_time_to_first_token(project: Project) -> None:
    """With `stream_upgrade`, calls of a program that does not stream have chunks, and the model's tool calls are still read."""
    project.suite(scenarios=1, agent=command(stream_upgrade=True))
    project.write("scenarios/shop/agent.py", PLAIN)

    project.run("scenarios/shop").assert_outcomes(passed=1)

    (rollout,) = project.rollouts
    assert ["find_item"] == rollout.tools
    assert all(call.chunks and call.upgraded for call in rollout.calls)


@pytest.mark.slow
def test_a_program_inline(project: Project) -> None:
    """With --agentbench-inline, the program runs too."""
    project.suite(scenarios=1, agent=command())
    project.write("scenarios/shop/agent.py", PLAIN)

    project.run("scenarios/shop", "--agentbench-inline").assert_outcomes(passed=1)

    assert [["find_item"]] == [rollout.tools for rollout in project.rollouts]


@pytest.mark.slow
def test_a_missing_program(project: Project) -> None:
    """If the program does not exist, the suite is a collection error of one sentence."""
    project.suite(agent={"kind": "command", "program": ["./lost"]})

    result = project.run("scenarios/shop")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*suite.yaml: agent: 'command' cannot be made from its settings: program: there is no executable file './lost' in *"]
    )


@pytest.mark.slow
def test_whether_program_or_backend_is_responsible(project: Project) -> None:
    """A program that fails is an agent_error. A program that fails because of the backend is an infra_error and is attempted again."""
    project.backend([{"match": {"contains": "shop-1"}, "status": 500}, *FIND_THEN_ANSWER])
    project.suite(scenarios=3, agent=command())
    project.write("scenarios/shop/agent.py", PLAIN.replace("while True:", "assert 'shop-2' not in str(messages), 'no shop-2'\nwhile True:"))

    project.run("scenarios/shop", "--agentbench-retries=1").assert_outcomes(passed=1, failed=1, errors=1)

    found = {rollout.scenario: rollout for rollout in project.rollouts}
    assert {"shop-0": "ok", "shop-1": "infra_error", "shop-2": "agent_error"} == {name: each.status for name, each in found.items()}
    assert 2 == found["shop-1"].attempt
    assert found["shop-2"].reason.endswith("AssertionError: no shop-2")
    assert "exit code 1" in found["shop-2"].reason


@pytest.mark.slow
def test_a_program_over_its_budget(project: Project) -> None:
    """A program that takes too long is terminated, and its calls so far are scored."""
    project.suite(scenarios=1, agent=command(), timeout=3)
    project.write("scenarios/shop/agent.py", PLAIN + "import time; time.sleep(600)\n")

    project.run("scenarios/shop").assert_outcomes(passed=1)

    (rollout,) = project.rollouts
    assert ("limit", ["find_item"], [-signal.SIGTERM]) == (rollout.status, rollout.tools, [each.exit_code for each in rollout.programs])


@pytest.mark.slow
def test_programs_that_close_early(project: Project) -> None:
    """A program may close its connection after the last byte of an answer.

    The call still counts as complete, however many programs do so at once.
    """
    agents = 48
    project.suite(scenarios=agents, agent=command())
    project.write("scenarios/shop/agent.py", PLAIN)
    with routing(together=agents) as router:
        project.write("backends/router.yaml", json.dumps({"kind": "url", "url": router.url, "model": "m"}))
        options = ("--agentbench-backend=router", f"--agentbench-concurrency={agents}", "--agentbench-retries=0")
        project.run("scenarios/shop", *options).assert_outcomes(passed=agents)

    assert [(["find_item"], 1.0)] * agents == [(rollout.tools, rollout.score("tsq")) for rollout in project.rollouts]
    assert {(None, 9, 5)} == {
        (call.error_kind, call.prompt_tokens, call.completion_tokens) for rollout in project.rollouts for call in rollout.calls
    }
