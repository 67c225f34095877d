"""Sessions build images before they open sandboxes, and leave no sandboxes behind, however they end."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.project import Project
from tests.robustness.processes import Background
from tests.sandbox.conftest import IMAGE, listed
from tests.tasks import write_task
from tests.waits import wait_for

pytestmark = pytest.mark.slow

DOCKERFILE = f"FROM {IMAGE}\nRUN echo {{}} > /app/name\n"
SMALL = "[environment]\nmemory_mb = 256\nnetwork_mode = 'no-network'\n"
TEST = "def test_task(rollout, thresholds):\n    assert 1.0 == rollout.score('reward')\n"


@pytest.fixture(autouse=True)
def of_this_test(engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the test use its own slots."""
    monkeypatch.setenv("AGENTBENCH_LOCKS", str(tmp_path / "locks"))
    yield
    for image in engine.images.list("agentbench-task"):
        engine.images.remove(image.tags[0], force=True)


def suite(project: Project, agent: str = "oracle", **tasks: dict[str, str]) -> None:
    """Writes a suite of small tasks, each with its own files."""
    project.write("scenarios/shop/test_shop.py", TEST)
    for name, files in tasks.items():
        write_task(
            project.root / "scenarios/shop/tasks", name, {"task.toml": SMALL, "environment/Dockerfile": DOCKERFILE.format(name), **files}
        )
    spec = {"name": "shop", "dataset": {"format": "harbor", "file": "tasks"}, "agent": {"kind": agent}, "scorers": {"reward": {}}}
    project.write("scenarios/shop/suite.yaml", json.dumps(spec))


def test_images_are_built_before_sandboxes(engine: Any, project: Project) -> None:
    """Each distinct image is built once.

    A task whose image cannot be built is an ERROR with the reason, the other tasks run, and no sandbox is left.
    """
    fails = {"environment/Dockerfile": f"FROM {IMAGE}\nRUN echo it fails here; exit 7\n"}
    suite(project, first={}, second={}, same={"environment/Dockerfile": DOCKERFILE.format("first")}, broken=fails)
    before = {each.id for each in engine.images.list("agentbench-task")}
    result = project.run("scenarios/shop", "-v", "--agentbench-concurrency=4", "--agentbench-sandboxes=2")
    made = {each.id for each in engine.images.list("agentbench-task")} - before
    again = project.run("scenarios/shop", "-v", "-k", "first or second")

    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines_random(["*made the images of 2 tasks in * s*", "*environment cannot be built: *", "*it fails here*"])
    assert 2 == len(made)
    again.assert_outcomes(passed=2)
    assert "made the image" not in again.stdout.str()
    assert [] == listed(engine, all=True)


def test_no_engine(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an engine, the error says what is missing and what would help."""
    suite(project, first={})
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    result = project.run("scenarios/shop")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*no Docker Engine answers at unix:///nowhere/docker.sock*install Docker and start it*"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=["ctrl-c", "sigterm", "sigkill"])
def test_a_session_that_is_stopped(engine: Any, project: Project, number: int) -> None:
    """The sandboxes of a session end with it, however it is ended."""
    suite(project, first={"solution/solve.sh": "sleep 600"}, second={"solution/solve.sh": "sleep 600"})
    background = Background(project, "scenarios/shop")
    try:
        wait_for(lambda: len(listed(engine)) == 2, "two sandboxes", 90)
        background.process.send_signal(number)
        background.ended(60)
        wait_for(lambda: not listed(engine, all=True), "the end of the sandboxes", 60)
    finally:
        background.clean_up()


def test_a_session_that_is_killed_with_its_pool(engine: Any, project: Project) -> None:
    """If a session and its pool are killed, the next session removes their sandboxes and reports it."""
    suite(project, first={"solution/solve.sh": "sleep 600"}, second={"solution/solve.sh": "sleep 600"}, third={})
    background = Background(project, "scenarios/shop", "-k", "first or second")
    try:
        wait_for(lambda: len(listed(engine)) == 2, "two sandboxes", 90)
        pool = background.child("pytest_agentbench.rollouts.pool")
        os.kill(background.process.pid, signal.SIGKILL)
        os.kill(pool, signal.SIGKILL)
        background.ended(60)
        left = len(listed(engine))
        result = project.run("scenarios/shop", "-k", "third")
    finally:
        background.clean_up()

    assert 2 == left
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*removed what a killed session had left: sandbox * of shop?first?, run *"])
    assert [] == listed(engine, all=True)
