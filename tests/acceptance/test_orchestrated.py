"""The orchestrator on questions that are no tasks: its programs run in a sandbox that the suite names, and in no other."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pytest_agentbench.reports.document import Level
from pytest_agentbench.sandbox.bubblewrap import KIND
from tests.findings import measure, report_of, under
from tests.project import Project

pytestmark = pytest.mark.slow

HLE = Path(__file__).parents[2] / "scenarios" / "hle"
BACKEND = "--agentbench-backend=scenarios/hle/orchestrated.yaml"
VARIANT = "--agentbench-variants=orchestrator"


@pytest.fixture
def hle(project: Project) -> Project:
    """A project with the suite."""
    shutil.copytree(HLE, project.root / "scenarios/hle", ignore=shutil.ignore_patterns("__pycache__"))
    return project


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="NOT TESTED: bubblewrap is not installed")
def test_programs_run(hle: Project) -> None:
    """Four of twelve questions are answered by what a program printed in the sandbox, and the report says which kind it was."""
    result = hle.run("scenarios/hle", VARIANT, BACKEND, "-v")

    result.assert_outcomes(passed=12)
    assert {("ok", "")} == {(rollout.status, rollout.reason) for rollout in hle.rollouts}  # though an expert asks for 40,000 tokens
    assert {None} == {call.error_kind for rollout in hle.rollouts for call in rollout.calls}
    report = report_of(hle.directory, Level.FULL)
    assert pytest.approx(4 / 12) == measure(report, "accuracy").value
    assert [(KIND,)] == under(report, "sandbox")
    suite = hle.run_json["suites"]["hle-orchestrator"]
    assert [KIND] == suite["sandboxes"]
    assert pytest.approx(4 / 12) == suite["answers"]["judged_answer"]["accuracy"]
    assert {KIND} == {rollout.sandbox for rollout in hle.rollouts}
    assert KIND in result.stdout.str()


def test_none_in_the_place_of_another(hle: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the sandbox that is named cannot be had nothing is measured, and it is said why."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    agent = "variants.orchestrator.agent"
    docker = (f"--agentbench-set={agent}.code_sandbox=docker", f"--agentbench-set={agent}.image=python:3.12-slim")

    without_image = hle.run("scenarios/hle", VARIANT, BACKEND, docker[0])
    without_engine = hle.run("scenarios/hle", VARIANT, BACKEND, *docker)
    monkeypatch.setenv("PATH", str(Path(shutil.which("env") or "").parent / "nowhere"))
    without_bubblewrap = hle.run("scenarios/hle", VARIANT, BACKEND)

    without_image.stdout.fnmatch_lines(["*`image`, an image with python3, is required with `code_sandbox: docker`*"])
    without_engine.assert_outcomes(errors=12)
    without_engine.stdout.fnmatch_lines(["*no Docker Engine answers at unix:///nowhere/docker.sock*"])
    without_bubblewrap.assert_outcomes(errors=12)
    without_bubblewrap.stdout.fnmatch_lines(["*the program `bwrap` is not on the PATH; install bubblewrap*"])


def test_a_task_has_a_sandbox(project: Project) -> None:
    """A sandbox for questions is refused where the scenarios are tasks."""
    project.write("scenarios/shop/tasks/one/task.toml", "[environment]\nnetwork_mode = 'no-network'\n")
    project.write("scenarios/shop/tasks/one/instruction.md", "Do nothing.")
    project.write("scenarios/shop/tasks/one/environment/Dockerfile", "FROM nothing\n")
    project.write("scenarios/shop/tasks/one/tests/test.sh", "exit 0\n")
    project.write("scenarios/shop/test_shop.py", "def test_task(rollout):\n    pass\n")
    agent = {"kind": "orchestrator", "code_sandbox": "bubblewrap"}
    suite = {"name": "shop", "dataset": {"format": "harbor", "file": "tasks"}, "agent": agent, "scorers": {"reward": {}}}
    project.write("scenarios/shop/suite.yaml", json.dumps(suite))

    project.run("scenarios/shop").stdout.fnmatch_lines(["*scenario 'one' is a task and brings a sandbox; leave `code_sandbox` out*"])


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="NOT TESTED: bubblewrap is not installed")
def test_beside_code_in_a_process(hle: Project) -> None:
    """`isolation: process` is for the suite's own scorer; programs of the orchestrator run in their sandbox all the same."""
    hle.write("scenarios/hle/own.py", "def answered(scenario, rollout):\n    return float(bool(rollout.answer))\n")
    own = ("--agentbench-set=isolation=process", "--agentbench-set=scorers=[judged_answer, ./own.py:answered]")

    hle.run("scenarios/hle", VARIANT, BACKEND, *own).assert_outcomes(passed=12)

    assert pytest.approx(4 / 12) == hle.run_json["suites"]["hle-orchestrator"]["answers"]["judged_answer"]["accuracy"]
    assert {KIND} == {rollout.sandbox for rollout in hle.rollouts}
    assert 1.0 == hle.run_json["suites"]["hle-orchestrator"]["scores"]["answered"]["mean"]["value"]


def test_none_in_a_process_of_its_own(hle: Project) -> None:
    """An orchestrator that is the suite's own, in a process for each rollout, has no sandbox: it is refused before anything runs."""
    hle.write("scenarios/hle/own.py", "from pytest_agentbench.agents.orchestrator import Orchestrator as Own\n")
    own = ("--agentbench-set=isolation=process", "--agentbench-set=variants.orchestrator.agent.kind=./own.py:Own")

    result = hle.run("scenarios/hle", VARIANT, BACKEND, *own)

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*suite.yaml: isolation: the agent './own.py:Own' runs programs in a sandbox, which a process *"])
