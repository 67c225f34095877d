"""Complete sessions with tasks in real sandboxes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.records import Json
from pytest_agentbench.reports import suite_phrases
from pytest_agentbench.reports.document import Code, Level, plain, say
from pytest_agentbench.runs.run_file import read_run
from pytest_agentbench.sandbox.containers import OWNER, UNLIMITED_KIND
from tests.findings import gate_of, reasons, report_of, tables, texts, under
from tests.project import Project
from tests.sandbox.conftest import IMAGE
from tests.tasks import write_task

pytestmark = pytest.mark.slow

TEST = """
def test_task(rollout, thresholds):
    assert rollout.score("reward") >= thresholds["reward"]
"""

TOML = f"""
[agent]
timeout_sec = {{seconds}}

[environment]
docker_image = "{IMAGE}"
network_mode = "no-network"
memory_mb = 256
cpus = 0.5
"""

SOLVE = "echo hello > /root/hello"

#: Task -> the commands of the scripted model, one per answer. The last one is repeated.
PLAYS: Mapping[str, list[str]] = {
    "solved": [SOLVE, "done"],
    "idle": ["done"],
    "cheat": [
        "mkdir -p /logs/verifier; cd /logs/verifier; (setsid bash -c 'while :; do echo 1 > reward.txt; done' &); echo 1 > reward.json",
        "done",
    ],
    "endless": [SOLVE, "ls /root"],
    "late": [f"{SOLVE}; sleep 600"],
    "silent": [SOLVE, "done"],
}

SILENT = {"tests/test.sh": "echo the disk is full\n"}


def rules() -> list[Json]:
    """Returns a script that chooses its answers by the task's name in the instruction."""
    return [
        rule
        for task, play in PLAYS.items()
        for turn, step in enumerate(play)
        for rule in [_rule(task, turn, step, last=turn == len(play) - 1)]
    ]


def _rule(task: str, turn: int, step: str, *, last: bool) -> Json:
    call: Json = (
        {"name": "done", "arguments": {"summary": "so it is"}} if step == "done" else {"name": "bash", "arguments": {"command": step}}
    )
    match: Json = {"contains": f"task {task}."}
    return {"match": match if last else {**match, "turn": turn}, "tool_calls": [call]}


@pytest.fixture
def bench(project: Project, engine: Any) -> Project:
    """A project with a suite of all PLAYS."""
    for task in PLAYS:
        files = {
            "task.toml": TOML.format(seconds=3.0 if task == "late" else 300.0),
            "instruction.md": f"This is the task {task}. Write hello into /root/hello.\n",
            **(SILENT if task == "silent" else {}),
        }
        write_task(project.root / "scenarios/bench/tasks", task, files, without=["environment/Dockerfile"])
    project.write("scenarios/bench/test_bench.py", TEST)
    spec = {
        "name": "bench",
        "dataset": {"format": "harbor", "file": "tasks"},
        "agent": {"kind": "terminal", "max_iterations": 3},
        "scorers": ["reward"],
    }
    project.write("scenarios/bench/suite.yaml", json.dumps(spec))
    project.backend(rules())
    return project


def test_a_terminal_agent(bench: Project) -> None:
    """An agent that solves a task gets its reward, also at a limit of iterations or time. An idle agent or one that cheats gets 0.

    A verifier without output gives no score. Reports show the solved tasks, their costs, and why the others were not solved.
    """
    result = bench.run("-v", "--agentbench-retries=0")

    result.assert_outcomes(passed=3, failed=2, errors=1)
    rollouts = {rollout.scenario: rollout for rollout in bench.rollouts}
    rewards = {name: each.verification and each.verification.reward for name, each in rollouts.items()}
    assert {"solved": 1.0, "idle": 0.0, "cheat": 0.0, "endless": 1.0, "late": 1.0, "silent": None} == rewards
    ends = {name: (each.status, each.reason.partition(" ")[0]) for name, each in rollouts.items()}
    assert {"endless": ("limit", "iterations:"), "late": ("limit", "time:")} == {name: ends[name] for name in ("endless", "late")}
    assert "infra_error" == rollouts["silent"].status
    assert "the verifier's output ends with: the disk is full" in rollouts["silent"].reason
    (command,) = rollouts["solved"].tool_calls
    assert ("bash", SOLVE) == (command.name, command.arguments["command"])
    assert rollouts["solved"].started_ns < (command.started_ns or 0) < (command.ended_ns or 0) < rollouts["solved"].ended_ns
    [(told,)] = under(report_of(bench.directory, Level.FULL), "tasks")
    assert [("cheat", 0), ("endless", 1), ("idle", 0), ("late", 1), ("solved", 1)] == [(each.scenario, each.solved) for each in told.tasks]
    is_unlimited = [UNLIMITED_KIND] == bench.run_json["suites"]["bench"]["tasks"]["sandboxes"]
    assert is_unlimited == ("storage driver has no quotas" in result.stdout.str())
    assert "the network `public`" not in result.stdout.str()
    report = report_of(bench.directory)
    rows = [row[:4] for row in tables(report, "task")[0].rows]
    assert (Code("solved", "scenario"), say(suite_phrases.solved, 1, 1), 1.0, 1.0) in rows
    assert tables(report, "agent ended as")
    assert 0 == main(["rescore", str(bench.directory)])
    again = read_run(bench.directory.with_name(f"{bench.directory.name}-rescored"))
    assert read_run(bench.directory).suites["bench"].tasks == again.suites["bench"].tasks
    tasks = bench.run_json["suites"]["bench"]["tasks"]["tasks"]
    assert ["cheat", "endless", "idle", "late", "solved"] == [task["scenario"] for task in tasks]


def test_oracle_and_nothing(bench: Project) -> None:
    """The task's own solution gets 1, and doing nothing gets 0. Neither calls a model."""
    oracle = bench.run("--agentbench-agent=oracle", "--agentbench-retries=0", "-k", "solved or idle or silent")

    oracle.assert_outcomes(passed=2, errors=1)
    assert all(not rollout.calls and rollout.tools == ["bash"] for rollout in bench.rollouts)

    nothing = bench.run("--agentbench-agent=nothing", "-k", "solved or idle")

    nothing.assert_outcomes(failed=2)
    assert [0.0, 0.0] == [rollout.verification.reward for rollout in bench.rollouts if rollout.verification]


def test_many_at_once(bench: Project, engine: Any) -> None:
    """24 trials with a concurrency of 8, and 48 at once: all are solved and verified, pass^k is 1, and no container is left."""
    for trials, concurrency in ((24, 8), (48, 48)):
        many = (f"--agentbench-trials={trials}", f"--agentbench-concurrency={concurrency}", f"--agentbench-sandboxes={concurrency}")
        result = bench.run("-k", "solved", "--agentbench-retries=0", *many)

        result.assert_outcomes(passed=trials)
        assert {1.0} == {rollout.verification.reward for rollout in bench.rollouts if rollout.verification}
        passes = bench.run_json["suites"]["bench"]["passes"]
        assert (1.0, [1.0] * 10) == (passes["floor"], [each["value"] for each in passes["pass_all"]])
        assert [] == engine.containers.list(all=True, filters={"label": OWNER})


def test_skipped_tasks_do_not_pass(bench: Project) -> None:
    """A rule of the command line names skipped tasks. If no other task is left, the verdict is INCONCLUSIVE."""
    write_task(bench.root / "scenarios/bench/tasks", "train", {"task.toml": "[environment]\ngpus = 1\n"})
    rule = "--agentbench-gate=reward.mean >= 0 of run"

    for selection, verdict in {"solved or train": "PASS", "train": "INCONCLUSIVE"}.items():
        bench.run(rule, "-k", selection)
        report = report_of(bench.directory, Level.FULL)
        assert verdict == gate_of(report).verdict
        told = [*reasons(report), *map(plain, texts(report))]
        assert any(each.endswith("skipped because they need unsupported features: train") for each in told)


def test_agents_without_a_task(project: Project) -> None:
    """An agent that needs a sandbox is an error for a suite whose scenarios are not tasks, before anything boots."""
    project.suite()
    result = project.run("--agentbench-agent=terminal")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*suite.yaml: agent: 'terminal' works in a sandbox, and scenario 'shop-0' is not a task;*"])
