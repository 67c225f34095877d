"""Each kind of suite has the same records with node workers as in a local session."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

from pytest_agentbench.records import Rollout
from pytest_agentbench.sandbox.containers import RUN
from tests.acceptance.test_mcp_tools import SERVER
from tests.plain_agent import PLAIN
from tests.project import FIND_THEN_ANSWER, ROOT, Project
from tests.robustness.conftest import start
from tests.robustness.processes import Background
from tests.robustness.test_isolation import ANY, isolated
from tests.sandbox.conftest import IMAGE, engine, engine_url, listed
from tests.tasks import write_task
from tests.waits import wait_for

__all__ = ["engine", "engine_url", "start"]  # fixtures

NODES = "--agentbench-nodes=local:2"


def told(rollout: Rollout) -> dict[str, Any]:
    """Returns what a record tells about a rollout, without times and process ids."""
    return {
        "status": (rollout.status, rollout.reason),
        "scores": (dict(rollout.scores), rollout.score_errors),
        "tools": [(each.name, each.arguments, each.turn, each.refusal) for each in rollout.tool_calls],
        "messages": rollout.messages,
        "answer": rollout.answer,
        "calls": [(call.role, call.error_kind, call.prompt_tokens, call.completion_tokens) for call in rollout.all_calls],
        "drafts": [(draft.chosen, draft.answer, draft.scores) for draft in rollout.drafts],
        "programs": [program.exit_code for program in rollout.programs],
        "sandbox": rollout.sandbox,
        "reward": rollout.verification and rollout.verification.reward,
        "log": re.sub(r"0x[0-9a-f]+", "0x", rollout.log),
        "state": rollout.final_state,
        "attempts": [(each.status, len(each.calls)) for each in rollout.attempts],
        "content": (rollout.content, rollout.cluster, rollout.expected, rollout.settings),
    }


def same_records(project: Project, *arguments: str) -> list[Rollout]:
    """Runs a session on this machine and one with two node workers, and compares their records. Returns the latter."""
    local, nodes = (_records(project, *arguments, *more) for more in ((), (NODES,)))

    assert local
    assert [rollout.key for rollout in local] == [rollout.key for rollout in nodes]
    for mine, theirs in zip(local, nodes, strict=True):
        assert told(mine) == told(theirs)
    assert {""} == {rollout.node for rollout in local}
    assert {"w1", "w2"} >= {rollout.node for rollout in nodes}
    return nodes


def _records(project: Project, *arguments: str) -> list[Rollout]:
    project.run(*arguments, "--agentbench-retries=0")
    return sorted(project.rollouts, key=lambda rollout: str(rollout.key))


def test_banking(project: Project) -> None:
    """The suite banking has the same records with node workers."""
    project.shipped("banking")

    rollouts = same_records(project, "scenarios/banking", "--agentbench-limit=20")

    assert ({"ok"}, 20) == ({rollout.status for rollout in rollouts}, len(rollouts))


@pytest.mark.slow
def test_tools_of_the_suite(project: Project) -> None:
    """Tools that are code of the suite run on the nodes."""
    project.shipped("banking")

    rollouts = same_records(project, "scenarios/banking", "--agentbench-variants=executed", "--agentbench-limit=20")

    assert {"ok"} == {rollout.status for rollout in rollouts}


@pytest.mark.slow
def test_drafts_and_a_judge(project: Project) -> None:
    """An agent that writes drafts and asks a judge does the same on the nodes."""
    project.shipped("banking")

    rollouts = same_records(project, "scenarios/banking", "--agentbench-agent=self_evaluating", "--agentbench-limit=10")

    assert all(rollout.drafts and rollout.other_calls for rollout in rollouts)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="NOT TESTED: bubblewrap is not installed")
def test_an_orchestrator_with_roles(project: Project) -> None:
    """Roles, experts, and programs in bubblewrap sandboxes do the same on the nodes."""
    shutil.copytree(ROOT / "scenarios/hle", project.root / "scenarios/hle", ignore=shutil.ignore_patterns("__pycache__"))
    backend = "--agentbench-backend=scenarios/hle/orchestrated.yaml"

    rollouts = same_records(project, "scenarios/hle", "--agentbench-variants=orchestrator", backend)

    assert {("ok", "bubblewrap")} == {(rollout.status, (rollout.sandbox or "").partition(",")[0]) for rollout in rollouts}
    assert 1 < len({call.role for rollout in rollouts for call in rollout.all_calls})


@pytest.mark.slow
def test_a_program(project: Project) -> None:
    """The program of a command agent runs on the nodes, from the folder of the suite's files there."""
    project.suite(agent={"kind": "command", "program": [sys.executable, "agent.py"]})
    project.write("scenarios/shop/agent.py", PLAIN)

    rollouts = same_records(project, "scenarios/shop")

    assert [[0]] * 3 == [[program.exit_code for program in rollout.programs] for rollout in rollouts]


@pytest.mark.slow
def test_an_mcp_server(project: Project) -> None:
    """The MCP server of a suite runs on the nodes."""
    project.suite(tools={"kind": "mcp", "command": ["python", "server.py"]}, thresholds={})
    project.write("scenarios/shop/server.py", SERVER)
    asked = [{"name": name, "arguments": {"item": "lamp", "count": 1}} for name in ("order_item", "order_item", "return_item")]
    project.backend([{**FIND_THEN_ANSWER[0], "tool_calls": asked}, FIND_THEN_ANSWER[1]])

    rollouts = same_records(project, "scenarios/shop")

    assert [["order_item", "order_item", "return_item"]] * 3 == [rollout.tools for rollout in rollouts]


@pytest.mark.slow
def test_isolated_rollouts(project: Project) -> None:
    """With `isolation: process`, each rollout has a process on its node, and a crash of it concerns no other."""
    isolated(project, ["fine", "spoils", "crashes", "leaves"], scorers=["./agent.py:score"])

    rollouts = same_records(project, "scenarios/shop")

    assert 4 == len(rollouts)


KILLS = """
import asyncio, os

async def run(scenario, llm, tools):
    await llm.chat(scenario.messages, tools.schemas)
    if scenario.id == "shop-3":
        os.kill(os.getppid(), 9)
        await asyncio.sleep(600)
    return "done"
"""


@pytest.mark.slow
def test_a_rollout_that_kills_its_template_process(project: Project) -> None:
    """It is identified on nodes as in a local session: it runs alone and ends, costs no other rollout a retry, and no node is lost."""
    project.suite(scenarios=12, agent={"kind": "./agent.py:run"}, isolation="process", test=ANY, thresholds={})
    project.write("scenarios/shop/agent.py", KILLS)
    ends = []

    for options in ((), (NODES,)):
        result = project.run("scenarios/shop", "--agentbench-retries=0", *options)
        result.assert_outcomes(passed=11, errors=1)
        assert "was lost" not in result.stdout.str()
        assert {"template of shop": 3} == project.run_json["interruptions"]["deaths"]
        ends.append({each.scenario: (each.status, each.reason) for each in project.rollouts})

    assert ends[0] == ends[1]
    assert ("infra_error", True) == (ends[0]["shop-3"][0], "template of shop died 3 times" in ends[0]["shop-3"][1])


LEAVES = """
import subprocess, sys

def run(scenario, llm, tools):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    return "done"
"""


@pytest.mark.slow
def test_processes_that_agents_leave(project: Project) -> None:
    """Processes that agents leave running on nodes are ended and counted as in a local session."""
    project.suite(scenarios=4, agent={"kind": "./agent.py:run"}, test=ANY, thresholds={})
    project.write("scenarios/shop/agent.py", LEAVES)

    for options in ((), (NODES,)):
        project.run("scenarios/shop", *options).stdout.fnmatch_lines(["agentbench: ended 4 processes that agents left running"])


TASK = f"""
[environment]
docker_image = "{IMAGE}"
network_mode = "no-network"
memory_mb = 256
cpus = 0.5
"""
#: Is built without a network.
DOCKERFILE = f"FROM {IMAGE}\nRUN echo built > /built\n"
SOLVE = "echo hello > /root/hello"


def tasks(project: Project, *names: str, dockerfile: str = DOCKERFILE) -> None:
    """Writes a suite of tasks, whose agent solves each. The task `built` has a Dockerfile, and the others name an image."""
    for name in names:
        is_built = name == "built"
        toml = TASK.replace(f'docker_image = "{IMAGE}"\n', "") if is_built else TASK
        files = {"task.toml": toml, "instruction.md": f"This is the task {name}. Write hello into /root/hello.\n"}
        own = {"environment/Dockerfile": dockerfile} if is_built else {}
        write_task(project.root / "scenarios/bench/tasks", name, {**files, **own}, without=[] if own else ["environment/Dockerfile"])
    project.write("scenarios/bench/test_bench.py", "def test_task(rollout):\n    assert rollout.score('reward') == 1\n")
    spec = {
        "name": "bench",
        "dataset": {"format": "harbor", "file": "tasks"},
        "agent": {"kind": "terminal", "max_iterations": 3},
        "scorers": ["reward"],
    }
    project.write("scenarios/bench/suite.yaml", json.dumps(spec))
    calls = {"built": f"test -f /built && {SOLVE}", "": SOLVE}
    project.backend(
        [
            *(
                {"match": {"contains": f"task {name}", "turn": 0}, "tool_calls": [{"name": "bash", "arguments": {"command": command}}]}
                for name, command in calls.items()
            ),
            {"tool_calls": [{"name": "done", "arguments": {"summary": "so it is"}}]},
        ]
    )


@pytest.mark.slow
def test_terminal_tasks(project: Project, engine: Any) -> None:
    """Sandboxes of tasks run on the nodes. No container is left."""
    tasks(project, "one", "two", "three")

    rollouts = same_records(project, "scenarios/bench")

    assert [1.0] * 3 == [rollout.verification.reward for rollout in rollouts if rollout.verification]
    assert [] == listed(engine, all=True)


@pytest.mark.slow
def test_images_are_built_on_nodes(project: Project, engine: Any) -> None:
    """An image that is missing is built on the nodes before they get rollouts, once for all node workers that share an engine."""
    tasks(project, "one", "built")

    result = project.run("scenarios/bench", NODES, "--agentbench-trials=3")

    result.assert_outcomes(passed=6)
    output = result.stdout.str()
    assert 1 == output.count("made the image of 1 task")
    assert output.index("made the image of 1 task") < output.index("has joined")
    assert [] == listed(engine, all=True)


@pytest.mark.slow
def test_an_image_that_cannot_be_built(project: Project, engine: Any) -> None:
    """If an image cannot be built on the nodes, its rollouts fail with the end of the build's output, and the others run."""
    tasks(project, "one", "built", dockerfile=f"FROM {IMAGE}\nRUN echo it lacks a lamp; exit 3\n")

    result = project.run("scenarios/bench", NODES, "--agentbench-retries=0")

    result.assert_outcomes(passed=1, errors=1)
    (broken,) = (rollout for rollout in project.rollouts if rollout.status == "infra_error")
    assert ("built", True) == (broken.scenario, "it lacks a lamp" in broken.reason)
    assert [] == listed(engine, all=True)


@pytest.mark.slow
def test_sandboxes_after_ctrl_c(project: Project, engine: Any, start: Callable[..., Background]) -> None:
    """After Ctrl-C, or after SIGKILL of a node worker, none of the sandboxes of its rollouts is left when the session has ended."""
    tasks(project, "one", "two")
    project.backend([{"tool_calls": [{"name": "bash", "arguments": {"command": "sleep 600"}}]}])
    background = start("scenarios/bench", NODES, "--agentbench-retries=0", "--agentbench-concurrency=2")
    wait_for(lambda: len(listed(engine)) == 2 or background.process.poll() is not None, "two sandboxes")
    assert {"-w1", "-w2"} == {each.labels[RUN][-3:] for each in listed(engine)}

    os.kill(background.children("pytest_agentbench.cli worker")[0], signal.SIGKILL)
    os.kill(background.process.pid, signal.SIGINT)

    assert 2 == background.ended()
    assert [] == listed(engine, all=True)


@pytest.mark.slow
def test_nodes_without_an_engine(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no node has a container engine, and tasks need one, the session says so and ends."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    tasks(project, "one")

    result = project.run("scenarios/bench", NODES, "--agentbench-nodes-wait=5")

    result.assert_outcomes(errors=1)
    assert "no node worker has been there for 5 s; the last one, on local-" in result.stdout.str()
    problem = "tasks run in containers, and there no Docker Engine answers at unix:///nowhere/docker.sock"
    told = [line for line in result.outlines if line.startswith("agentbench: the node worker") and problem in line]
    assert 2 == len(told)
