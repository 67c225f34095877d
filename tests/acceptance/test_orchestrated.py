"""The orchestrator on questions instead of tasks: its programs run only in the sandbox that the suite names."""

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
    """A project with the suite hle."""
    shutil.copytree(HLE, project.root / "scenarios/hle", ignore=shutil.ignore_patterns("__pycache__"))
    return project


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="NOT TESTED: bubblewrap is not installed")
def test_programs_run(hle: Project) -> None:
    """Four of twelve questions are answered with the output of a program in the sandbox, and the report names the kind of sandbox."""
    result = hle.run("scenarios/hle", VARIANT, BACKEND, "-v")

    result.assert_outcomes(passed=12)
    # No call fails, although an expert asks for 40,000 tokens.
    assert {("ok", "")} == {(rollout.status, rollout.reason) for rollout in hle.rollouts}
    assert {None} == {call.error_kind for rollout in hle.rollouts for call in rollout.calls}
    report = report_of(hle.directory, Level.FULL)
    assert pytest.approx(4 / 12) == measure(report, "accuracy").value
    assert [(KIND,)] == under(report, "sandbox")
    suite = hle.run_json["suites"]["hle-orchestrator"]
    assert [KIND] == suite["sandboxes"]
    assert pytest.approx(4 / 12) == suite["answers"]["judged_answer"]["accuracy"]
    assert {KIND} == {rollout.sandbox for rollout in hle.rollouts}
    assert KIND in result.stdout.str()


def test_a_sandbox_is_not_replaced_by_another(hle: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the named sandbox is not available, nothing is measured, and the error says why."""
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
    """A sandbox for questions is refused if the scenarios are tasks."""
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
def test_programs_with_isolation(hle: Project) -> None:
    """`isolation: process` applies to the suite's own scorer. Programs of the orchestrator still run in their sandbox."""
    hle.write("scenarios/hle/own.py", "def answered(scenario, rollout):\n    return float(bool(rollout.answer))\n")
    own = ("--agentbench-set=isolation=process", "--agentbench-set=scorers=[judged_answer, ./own.py:answered]")

    hle.run("scenarios/hle", VARIANT, BACKEND, *own).assert_outcomes(passed=12)

    assert pytest.approx(4 / 12) == hle.run_json["suites"]["hle-orchestrator"]["answers"]["judged_answer"]["accuracy"]
    assert {KIND} == {rollout.sandbox for rollout in hle.rollouts}
    assert 1.0 == hle.run_json["suites"]["hle-orchestrator"]["scores"]["answered"]["mean"]["value"]


def test_a_custom_orchestrator_with_isolation_is_refused(hle: Project) -> None:
    """A suite's own orchestrator in a process for each rollout has no sandbox, so it is refused before anything runs."""
    hle.write("scenarios/hle/own.py", "from pytest_agentbench.agents.orchestrator import Orchestrator as Own\n")
    own = ("--agentbench-set=isolation=process", "--agentbench-set=variants.orchestrator.agent.kind=./own.py:Own")

    result = hle.run("scenarios/hle", VARIANT, BACKEND, *own)

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*suite.yaml: isolation: the agent './own.py:Own' runs programs in a sandbox, which a process *"])
