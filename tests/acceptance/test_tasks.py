"""A suite of Harbor tasks: its tests, and tasks that cannot run."""

from __future__ import annotations

import json

import pytest

from pytest_agentbench.reports import suite_phrases
from pytest_agentbench.reports.document import Code, Level
from tests.findings import report_of, said, tables
from tests.project import Project
from tests.tasks import write_task

TESTS = """
def test_task(rollout):
    assert rollout.status == "ok"

def test_scenario(scenario):
    assert (type(scenario.task).__name__, scenario.task.folder.rpartition("/")[2]) == ("Task", scenario.id)
"""
VERIFIER = "def test_outputs():\n    raise AssertionError('this is for the sandbox')\n"


def tasks(project: Project) -> None:
    """Creates three tasks: one asks for a GPU, and one is broken. All have pytest files for their verifiers."""
    project.suite("shop", test=TESTS)
    folder = project.root / "scenarios/shop"
    for name, text in {"broken": "[agent]\ntimeout_sec = 'long'\n", "hello": "", "train": "[environment]\ngpus = 1\n"}.items():
        write_task(folder / "tasks", name, files={"task.toml": text, "tests/test_outputs.py": VERIFIER})
    (folder / "suite.yaml").write_text(json.dumps({"name": "shop", "dataset": {"format": "harbor", "file": "tasks"}}))


@pytest.mark.parametrize("way", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)], ids=["one-process", "n2"])
def test_a_task_that_asks_for_too_much_is_skipped(project: Project, monkeypatch: pytest.MonkeyPatch, way: tuple[str, ...]) -> None:
    """There is one test for each task, named after it, and a task that needs a GPU is skipped with the reason. A task's own tests are not
    collected.

    If the sandbox of a task is not available, its test is an error, and so is a broken task. `scenario.task` is a Task.
    """
    monkeypatch.setenv("DOCKER_HOST", f"unix://{project.root}/nobody")
    tasks(project)
    result = project.run("-rs", "-v", "--agentbench-retries=0", *way)

    result.assert_outcomes(passed=2, errors=2, skipped=2)
    result.stdout.fnmatch_lines(["*broken/task.toml: agent.timeout_sec: must be a number*"])
    result.stdout.fnmatch_lines(["*test_task?hello?*ERROR*" if not way else "*ERROR*test_task?hello?*"])
    result.stdout.fnmatch_lines(["SKIPPED*the task train asks for GPUs (environment.gpus): not supported"])
    told = said(report_of(project.directory, Level.FULL), suite_phrases.unsupported)
    assert [(1, 3)] == [(len(suite.unsupported), suite.dataset.size) for (suite,) in told]
    assert ["train"] == [*project.run_json["suites"]["shop"]["unsupported"]]
    row = (Code("train", "scenario"), "the task train asks for GPUs (environment.gpus): not supported")
    assert [(row,)] == [table.rows for table in tables(report_of(project.directory), "task")]


@pytest.mark.slow
def test_an_agent_for_tasks_beside_other_suites(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `-m`, other suites are not errors even if the agent or settings apply only to tasks. Without -m they are."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{project.root}/nobody")
    tasks(project)
    project.suite("bank", scenarios=1)

    named = project.run("-m", "shop", "scenarios", "--agentbench-agent=oracle", "--agentbench-retries=0")
    named.assert_outcomes(passed=2, errors=2, skipped=2, deselected=1)

    of_tasks = ("--agentbench-set=agent.style=text", "--agentbench-threshold=reward=0.5", "--agentbench-ab=set:agent.style=tool|text")
    for option in of_tasks:
        arguments = ("scenarios", "--collect-only", "--agentbench-agent=terminal", "--agentbench-set=scorers=[reward]", option)
        assert 0 == project.run("-m", "shop", *arguments).ret
        assert 0 != project.run(*arguments).ret

    every = project.run("scenarios", "--agentbench-agent=oracle", "--agentbench-retries=0")
    every.stdout.fnmatch_lines(["*bank/suite.yaml: agent: 'oracle' works in a sandbox, and scenario 'bank-0' is not a task*"])
