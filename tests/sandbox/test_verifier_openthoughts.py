"""The tasks of the suite `openthoughts`: their solutions solve them, and wrong solutions and cheats do not.

`attempts/TASK/` has three wrong solutions and one that cheats. They may use the right solution, which is in /solution.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.records import Json, RolloutKey
from pytest_agentbench.records.rollout import Verification
from pytest_agentbench.sandbox.containers import image_of, make_image
from pytest_agentbench.sandbox.factory import open_sandbox
from pytest_agentbench.sandbox.sandbox import Sandbox
from pytest_agentbench.sandbox.verifier import verify
from pytest_agentbench.suites.datasets.harbor import load
from pytest_agentbench.suites.suite import Task
from tests.base_image import base_image
from tests.dockerd import NoEngine
from tests.project import Project

ROOT = Path(__file__).parents[2]
ATTEMPTS = Path(__file__).parent / "attempts"
TASKS = {each.id: each.task for each in load(ROOT / "scenarios/openthoughts/tasks") if each.task}
ORACLE = "solution/solve.sh"

#: Attempt -> the check that must detect it.
FOUND_OUT = {
    "configure-a-server": {
        "nothing": "it_starts",
        "cheat-log-as-reward": "it_starts",
        "wrong-hidden-files-are-forbidden": "what_is_not_there_is_404",
        "wrong-log-is-no-json": "requests_are_logged",
        "wrong-prefix-kept": "the_application_is_asked",
    },
    "git-history-surgery": {
        "nothing": "the_password_is_in_no_object",
        "cheat-git-runs-a-program": "the_password_is_in_no_object",
        "wrong-empty-commits-dropped": "commits_are_as_they_were",
        "wrong-main-only": "the_password_is_in_no_object",
        "wrong-unreachable-objects-stay": "the_password_is_in_no_object",
    },
    "log-forensics": {
        "nothing": "the_intruder_is_named",
        "cheat-forged-reward": "the_intruder_is_named",
        "wrong-busiest-guesser": "the_intruder_is_named",
        "wrong-local-time": "the_login_is_in_utc",
        "wrong-without-older-logs": "every_part_of_it_is_counted",
    },
    "meter-readings": {
        "nothing": "one_number_is_there",
        "cheat-link-to-the-answer": "one_number_is_there",
        "wrong-estimates-count": "it_is_right",
        "wrong-last-reading-wins": "it_is_right",
        "wrong-month-in-utc": "it_is_right",
    },
    "repair-a-package": {
        "nothing": "it_can_be_imported",
        "cheat-package-writes-the-reward": "it_can_be_imported",
        "wrong-floats": "amounts_are_read",
        "wrong-import-only": "amounts_are_written",
        "wrong-visible-tests-only": "amounts_are_read",
    },
}


def test_every_task_has_its_attempts() -> None:
    """Each task has three wrong solutions and one that cheats. The helper for the checks of verifiers is equal in all tasks."""
    assert sorted(TASKS) == sorted(FOUND_OUT)
    for name, found_out in FOUND_OUT.items():
        scripts = sorted(file.stem for file in (ATTEMPTS / name).iterdir())
        assert sorted({*found_out} - {"nothing"}) == scripts
        assert ["cheat", "wrong", "wrong", "wrong"] == [script.partition("-")[0] for script in scripts]
    assert 1 == len({Path(task.folder, "tests/checks.py").read_text() for task in TASKS.values()})


def test_tasks_run_everywhere() -> None:
    """All tasks run without a network and with little memory. They share the first layer of their image, and have a separate verifier."""
    heads = {Path(task.folder, "environment/Dockerfile").read_text().splitlines()[1] for task in TASKS.values()}

    assert 1 == len(heads)
    for task in TASKS.values():
        assert ("", "no-network", True, 512) == (task.unsupported, task.network, task.separate_verifier, task.memory_mb)
        assert task.artifacts


@pytest.fixture(scope="module")
def base(engine_url: str) -> Iterator[str]:
    """Yields the base image of the tasks, in an engine that has it."""
    import docker

    client = docker.DockerClient(base_url=engine_url)
    try:
        with base_image(client) as name:
            yield name
    except NoEngine as why:
        pytest.skip(f"NOT TESTED: the tasks of openthoughts; {why}")
    finally:
        client.close()


@asynccontextmanager
async def opened(task: Task) -> AsyncIterator[Sandbox]:
    sandbox = await open_sandbox(RolloutKey("openthoughts", Path(task.folder).name), task, 300, "a-run")
    try:
        yield sandbox
    finally:
        await sandbox.end()


async def attempt(task: Task, script: Path | None) -> Verification:
    """Returns the verification after a script was run instead of an agent, or after nothing was run."""
    async with opened(task) as sandbox:
        if script is not None:
            await sandbox.put(Path(task.folder, "solution"), "/solution")
            await sandbox.put(script, "/attempt.sh")
            done = await sandbox.exec("bash /attempt.sh", seconds=60)
            assert done.exit_code == 0 or script.stem.startswith("cheat"), done.output
        return await verify(sandbox, task)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TASKS))
async def test_only_a_solution_solves_a_task(name: str, base: str, engine: Any) -> None:
    """The task's own solution gets 1. Doing nothing, wrong solutions and cheats get 0, each from the check for its mistake."""
    task = TASKS[name]
    scripts: dict[str, Path | None] = {ORACLE: Path(task.folder, ORACLE), "nothing": None}
    scripts |= {file.stem: file for file in sorted((ATTEMPTS / name).iterdir())}
    first = await attempt(task, scripts[ORACLE])  # this builds the image

    assert (1.0, "") == (first.reward, first.first_failure), first.output
    others = [each for each in scripts if each != ORACLE]
    verified = await asyncio.gather(*(attempt(task, scripts[each]) for each in others))
    assert {each: (0.0, FOUND_OUT[name][each]) for each in others} == {
        each: (found.reward, found.first_failure) for each, found in zip(others, verified, strict=True)
    }


@pytest.mark.slow
def test_agents(project: Project, base: str, engine: Any) -> None:
    """A terminal agent whose model knows the solutions solves all tasks, and so does the oracle. The agent `nothing` solves none."""
    project.shipped("openthoughts")
    for task in TASKS.values():
        make_image(task, lambda _line: None)
    project.backend([*map(_solved_at_once, TASKS), {"tool_calls": [{"name": "done", "arguments": {}}]}])

    for agent, solved in {"terminal": len(TASKS), "oracle": len(TASKS), "nothing": 0}.items():
        result = project.run("-m", "openthoughts", f"--agentbench-agent={agent}", "--agentbench-retries=0")

        result.assert_outcomes(passed=solved, failed=len(TASKS) - solved)
        assert solved == sum(task["solved"] for task in project.run_json["suites"]["openthoughts"]["tasks"]["tasks"])


@pytest.mark.slow
def test_programs_of_an_orchestrator(project: Project, base: str, engine: Any) -> None:
    """Programs of an orchestrator run in containers of the image that the suite names, here that of a task.

    They print four of twelve answers.
    """
    make_image(TASKS["repair-a-package"], lambda _line: None)
    project.shipped("hle")
    sandbox = {"code_sandbox": "docker", "image": image_of(TASKS["repair-a-package"])}

    project.run(
        "scenarios/hle",
        "--agentbench-variants=orchestrator",
        "--agentbench-backend=scenarios/hle/orchestrated.yaml",
        *(f"--agentbench-set=variants.orchestrator.agent.{name}={value}" for name, value in sandbox.items()),
    ).assert_outcomes(passed=12)

    assert pytest.approx(4 / 12) == project.run_json["suites"]["hle-orchestrator"]["answers"]["judged_answer"]["accuracy"]
    assert {"docker"} == {rollout.sandbox.partition(",")[0] for rollout in project.rollouts}


def _solved_at_once(task: str) -> Json:
    """Returns a rule by which a model answers the task's instruction with its solution, as one command."""
    folder = Path(TASKS[task].folder)
    first_line = (folder / "instruction.md").read_text().partition("\n")[0]
    call = {"name": "bash", "arguments": {"command": (folder / ORACLE).read_text()}}
    return {"match": {"contains": first_line, "turn": 0}, "tool_calls": [call]}
