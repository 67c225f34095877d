"""Rollouts in the test's own call stack, for debuggers. They are recorded as usual."""

from __future__ import annotations

import subprocess

import pytest

from pytest_agentbench.gate.exit_status import CANNOT_MEASURE
from pytest_agentbench.lib.process import child_environment
from tests.project import FIND_THEN_ANSWER, PYTEST, Project

#: This agent answers with the id of the process in which it ran.
AGENT = """
import os
from dataclasses import dataclass
from pytest_agentbench.records import Answer

@dataclass(frozen=True)
class Agent:
    async def run(self, scenario, llm, tools):
        reply = await llm.chat(scenario.messages, tools.schemas)
        for call in reply.tool_calls:
            await tools.call(call.name, call.arguments, 1)
        return Answer(str(os.getpid()))
"""

SAME_PROCESS = """
import os

def test_process(rollout, thresholds):
    assert (rollout.answer == str(os.getpid())) is {inline}
    assert rollout.score("tsq") >= thresholds["tsq"]

def test_the_same_rollout(rollout):
    assert rollout.answer
"""


@pytest.mark.parametrize("inline", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_inline_runs_in_the_tests_own_process(project: Project, inline: bool) -> None:
    """With --agentbench-inline the agent runs in the test's process. The rollout is in the journal once, and is counted as usual."""
    project.suite(
        scenarios=2, test=SAME_PROCESS.format(inline=inline), agent={"kind": "./agent.py:Agent"}, thresholds={"tsq": 0.5, "tsq.mean": 0.9}
    )
    project.write("scenarios/shop/agent.py", AGENT)

    result = project.run(*(("--agentbench-inline",) if inline else ()), "scenarios/shop")

    result.assert_outcomes(passed=4)
    assert ["shop[shop-0]", "shop[shop-1]"] == sorted(str(rollout.key) for rollout in project.rollouts)
    assert [1, 1] == [len(rollout.calls) for rollout in project.rollouts]
    run = project.run_json
    assert {"rollouts": 2, "finished": 2, "not_run": 0} == run["plan"]
    assert 1.0 == run["suites"]["shop"]["scores"]["tsq"]["mean"]["value"]
    assert ["PASS"] == [rule["verdict"] for rule in run["gate"]["rules"]]


@pytest.mark.slow
def test_a_failing_mean_fails_an_inline_session(project: Project) -> None:
    """Thresholds of means are checked inline as well, and a suite whose tests were all skipped fails."""
    project.suite(expected=("find_item", "order_item"), thresholds={"tsq": 0.5, "tsq.mean": 0.9})

    low = project.run("--agentbench-inline", "scenarios/shop")

    low.assert_outcomes(passed=3)
    assert pytest.ExitCode.TESTS_FAILED == low.ret

    project.suite(test="import pytest\n\n@pytest.mark.skip\ndef test_tools(rollout):\n    pass\n")
    skipped = project.run("--agentbench-inline", "scenarios/shop")
    skipped.assert_outcomes(skipped=3)
    assert CANNOT_MEASURE == skipped.ret


@pytest.mark.slow
def test_what_goes_wrong_inline(project: Project) -> None:
    """A backend that fails is an ERROR with one sentence, as in the pool."""
    project.suite(scenarios=1)
    project.backend([{"status": 500, "message": "out of memory"}])
    broken = project.run("--agentbench-inline", "scenarios/shop")
    broken.assert_outcomes(errors=1)
    broken.stdout.fnmatch_lines(["shop[[]shop-0[]]: infra_error: *out of memory*"])
    assert ["infra_error"] == [rollout.status for rollout in project.rollouts]


@pytest.mark.slow
@pytest.mark.parametrize("way", [("--agentbench-inline",), ("--pdb",)])
def test_inline_and_workers_exclude_each_other(project: Project, way: tuple[str, ...]) -> None:
    """With -n, --agentbench-inline and --pdb are usage errors."""
    project.suite()

    result = project.run(*way, "-n", "2", "scenarios/shop")

    assert pytest.ExitCode.USAGE_ERROR == result.ret
    result.stderr.fnmatch_lines_random(
        ["ERROR: --agentbench-inline runs rollouts in this process and cannot be used with -n*" if way != ("--pdb",) else "ERROR: --pdb*"]
    )
    assert not (project.root / "reports").exists()


def debug(project: Project, typed: str) -> subprocess.CompletedProcess[str]:
    """Runs pytest under --pdb with this input."""
    command = [*PYTEST, "--pdb", "scenarios/shop"]
    return subprocess.run(
        command, cwd=project.root, env=child_environment(), input=typed, text=True, capture_output=True, timeout=60, check=False
    )


@pytest.mark.slow
def test_the_debugger_stops_at_a_failing_test(project: Project) -> None:
    """--pdb implies inline: at a failing assertion the debugger opens in the test, where its rollout is available."""
    project.suite(scenarios=2)
    project.backend([{"match": {"contains": "shop-0"}, "text": "No."}, *FIND_THEN_ANSWER])

    done = debug(project, "p 'asked ' + rollout.answer\nc\n")

    assert "'asked No.'" in done.stdout
    assert "1 failed, 1 passed" in done.stdout
    assert 1 == done.returncode
    assert 2 == len(project.rollouts)

    assert "Exit: Quitting debugger" in debug(project, "q\n").stdout
    assert {"rollouts": 2, "finished": 1, "not_run": 1} == project.run_json["plan"]


@pytest.mark.slow
def test_the_debugger_walks_through_the_agent(project: Project) -> None:
    """A breakpoint() in an agent opens the debugger in the agent's own frame."""
    project.suite(scenarios=1, agent={"kind": "./agent.py:Agent"})
    project.write("scenarios/shop/agent.py", AGENT.replace("        reply =", "        breakpoint()\n        reply ="))

    done = debug(project, "p 'here is ' + scenario.id\nc\n")

    assert "'here is shop-0'" in done.stdout
    assert 0 == done.returncode
    assert 1 == len(project.rollouts)


@pytest.mark.slow
def test_the_debugger_walks_through_a_blocking_function(project: Project) -> None:
    """With a debugger, an agent that is a plain function and a scorer run in the test's own stack, without a thread or process of their
    own.
    """
    test = "def test_it(rollout): pass"
    scorers, agent = ["./agent.py:score"], {"kind": "./agent.py:run"}
    project.suite(scenarios=1, agent=agent, scorers=scorers, isolation="process", thresholds={}, test=test)
    project.write(
        "scenarios/shop/agent.py",
        """
import os, threading

def run(client, llm, scenario):
    said = client.chat.completions.create(model=llm.model, messages=[*scenario.messages])
    breakpoint()
    return said.choices[0].message.content or "nothing"

def score(scenario, rollout):
    return threading.current_thread() is threading.main_thread()
""",
    )

    done = debug(project, "p 'here is ' + scenario.id + ' on ' + threading.current_thread().name\nc\n")

    assert "'here is shop-0 on MainThread'" in done.stdout
    assert 0 == done.returncode
    assert (1, 1.0) == (len(project.rollouts[0].calls), project.rollouts[0].score("score"))
