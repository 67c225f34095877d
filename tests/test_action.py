"""The GitHub action of action.yml: its steps run a suite, gate it, keep one comment and upload the reports."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.composite_action import BASH, ROOT, TOKEN, GitHub, Job, api
from tests.project import Project
from tests.web import serving

STEPS = ROOT / ".github" / "action" / "steps.py"
MAIN: dict[str, Any] = {"repository": {"default_branch": "main"}}
PULL_REQUEST: dict[str, Any] = {**MAIN, "pull_request": {"number": 7}}
RULE = "tsq.mean >= -0.05 vs baseline\n"


@pytest.fixture
def github() -> GitHub:
    return GitHub(bodies=[f"comment {number}" for number in range(120)])


@pytest.fixture
def address(github: GitHub) -> Iterator[str]:
    with serving(api(github)) as server:
        yield f"http://127.0.0.1:{server.server_port}"


@pytest.fixture
def shop(project: Project) -> Project:
    """A project with a suite, whose environment is that of the tests."""
    project.suite(deterministic=True)
    (project.root / ".venv").symlink_to(sys.prefix)
    return project


class Jobs:
    """Makes jobs with the checkout of a project."""

    def __init__(self, project: Project, runner: Path, address: str) -> None:
        self.project, self.runner, self.address = project, runner, address

    def __call__(self, event: dict[str, Any], action: Path = ROOT / "action.yml") -> Job:
        return Job(self.project.root, self.runner, self.address, event, action)


@pytest.fixture
def jobs(shop: Project, tmp_path: Path, address: str) -> Jobs:
    return Jobs(shop, tmp_path, address)


def test_pass(jobs: Jobs, shop: Project, github: GitHub) -> None:
    """A run that passes has outputs, a summary, an artefact and a comment on the pull request. The token is in no file of the run."""
    trial = jobs(PULL_REQUEST)

    assert trial.run(suites="scenarios/shop", backend="embedded", install="none", artifact="shop"), trial.printed
    assert {"verdict": "PASS", "exit-status": "0", "run-directory": str(shop.directory)} == trial.outputs
    assert "PASS" in trial.summary
    assert "nothing is missing for: embedded" in trial.printed
    with zipfile.ZipFile(io.BytesIO(trial.uploads["shop"])) as archive:
        names = archive.namelist()
        assert {"junit.xml", f"reports/{shop.directory.name}/run.json"} < set(names)
        assert not [name for name in names if "latest" in name or TOKEN.encode() in archive.read(name)]
    assert 121 == len(github.bodies)
    assert github.bodies[-1] == (shop.directory / "comment.md").read_text()


@pytest.mark.slow
def test_fail(jobs: Jobs, shop: Project, github: GitHub) -> None:
    """A pull request is compared with the artefact of the default branch. A regression fails the job, and replaces the comment."""
    main = jobs(MAIN)
    assert main.run(install="none", gate=RULE, baseline="agentbench"), main.printed
    assert "::warning title=agentbench::no baseline: agentbench is neither a path nor an artefact of a passed run on main" in main.printed
    assert 120 == len(github.bodies)
    github.keep("agentbench", main.uploads["agentbench"])

    same, worse = (jobs(PULL_REQUEST) for _ in range(2))
    assert same.run(install="none", gate=RULE, baseline="agentbench"), same.printed
    shop.backend([{"text": "I cannot help."}])
    assert not worse.run(install="none", gate=RULE, baseline="agentbench")

    assert ("PASS", "0") == (same.outputs["verdict"], same.outputs["exit-status"])
    assert ("FAIL", "1") == (worse.outputs["verdict"], worse.outputs["exit-status"])
    assert main.outputs["run-directory"].rpartition("/")[2] == shop.run_json["gate"]["baselines"]["shop"]["run"]
    assert "FAIL" in worse.summary
    assert worse.uploads["agentbench"]
    assert 121 == len(github.bodies)
    assert "FAIL" in github.bodies[-1].splitlines()[1]


def test_a_usage_error(jobs: Jobs, shop: Project, github: GitHub) -> None:
    """Without a run there is a verdict, and no comment. Inputs are arguments of pytest, and no commands of a shell."""
    trial = jobs(PULL_REQUEST)

    assert not trial.run(install="none", suites="$(touch$IFS/a) `b`", args="'; touch c; #' --agentbench-trials=none")
    assert {"verdict": "USAGE ERROR", "exit-status": "4", "run-directory": ""} == trial.outputs
    assert 120 == len(github.bodies)
    assert not (shop.root / "c").exists()


def test_another_job_comments(jobs: Jobs, shop: Project, github: GitHub) -> None:
    """The action for another job replaces its earlier comment. A token that may not write, as that of a fork, changes no result."""
    run = shop.root / "reports" / "20260101-000000"
    run.mkdir(parents=True)
    trial = jobs(PULL_REQUEST, STEPS.parent / "comment" / "action.yml")
    for text in ("first", "second", "third"):
        (run / "comment.md").write_text(f"<!-- agentbench: shop on embedded -->\n{text}")
        github.may_comment = text != "third"
        assert trial.run(), trial.printed

    assert 121 == len(github.bodies)
    assert github.bodies[-1].endswith("second")
    assert "::warning title=agentbench::no comment: the token may not write one." in trial.printed


def archive_of(name: str, status: int) -> bytes:
    """Returns an artefact with a run."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        file.writestr(f"reports/{name}/run.json", json.dumps({"exit_status": status}))
    return content.getvalue()


def test_artefacts_that_are_a_baseline(jobs: Jobs, shop: Project, github: GitHub) -> None:
    """The baseline is the newest artefact of a passed run on the default branch. That of a fork with a branch of this name is not."""
    github.keep("shop", archive_of("20260101-000000", 0))
    github.keep("shop", archive_of("20260102-000000", 0))
    github.keep("shop", archive_of("20260103-000000", 1))
    github.keep("shop", archive_of("20260104-000000", 0), fork=True)
    github.keep("shop", archive_of("20260105-000000", 0), branch="feature")
    github.keep("shop", archive_of("20260106-000000", 0), expired=True)
    github.keep("bank", archive_of("20260107-000000", 0))
    trial = jobs(PULL_REQUEST)
    results = jobs.runner / "outputs"
    variables = {**trial.variables, "BASELINE": "shop", "TOKEN": TOKEN, "GITHUB_OUTPUT": str(results)}
    subprocess.run([sys.executable, STEPS, "baseline"], env=variables, cwd=shop.root, check=True)
    subprocess.run([sys.executable, STEPS, "baseline"], env={**variables, "BASELINE": "scenarios"}, cwd=shop.root, check=True)

    found = jobs.runner / "agentbench-baseline" / "2" / "reports" / "20260102-000000"
    assert f"path={found}\npath=scenarios\n" == results.read_text()


@pytest.mark.slow
def test_not_measured(jobs: Jobs, shop: Project) -> None:
    """A run that could not measure is resumed once, and the second session decides."""
    shop.broken_once()
    trial = jobs(MAIN)

    assert trial.run(install="none", args="--agentbench-retries=0"), trial.printed
    assert ("NO GATE", "0") == (trial.outputs["verdict"], trial.outputs["exit-status"])
    assert 2 == len(shop.run_json["sessions"])


WAITING = """
import asyncio, pathlib

async def run(scenario, llm):
    pathlib.Path("started").write_text("yes")
    await asyncio.sleep(600)
"""


@pytest.mark.slow
def test_a_cancelled_job(jobs: Jobs, shop: Project) -> None:
    """The signal of a cancelled job reaches pytest, which writes its reports, and the outputs are set."""
    shop.suite(agent={"kind": "./agent.py:run"})
    started = shop.root / "started"
    os.mkfifo(started)
    shop.write("scenarios/shop/agent.py", WAITING)
    results = jobs.runner / "outputs"
    inputs = {"SUITES": "scenarios", "GATE": "", "ARGS": "--agentbench-concurrency=1", "GITHUB_OUTPUT": str(results)}
    script = f"exec {sys.executable} {STEPS} run"
    with subprocess.Popen([*BASH, "-c", script], env={**jobs(MAIN).variables, **inputs}, cwd=shop.root) as step:
        assert "yes" == started.read_text()
        step.send_signal(signal.SIGINT)
        assert 2 == step.wait(120)

    assert f"run-directory={shop.directory}\nverdict=INTERRUPTED\nexit-status=2\n" == results.read_text()


PYTHON = """#!/bin/sh
case $2 in
venv) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
*) for each; do echo "<$each>"; done >words ;;
esac
"""


@pytest.mark.parametrize(("given", "installed"), [("", (str(ROOT),)), ("agentbench[gpu] 'x;y'", ("agentbench[gpu]", "'x;y'"))])
def test_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, installed: tuple[str, ...]) -> None:
    """Each word of the input is an argument of pip, or the folder of the action is. The python3 of this test writes down its arguments."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "work").mkdir()
    python = tmp_path / "bin" / "python3"
    python.write_text(PYTHON)
    python.chmod(0o755)
    monkeypatch.setenv("PATH", f"{python.parent}:{os.environ['PATH']}")
    trial = Job(tmp_path / "work", tmp_path, "", MAIN)

    trial.run(install=given)

    assert "success" == trial.steps["install"]["outcome"]
    assert ["<-m>", "<pip>", "<install>", "<--quiet>", *(f"<{each}>" for each in installed)] == (
        tmp_path / "work" / "words"
    ).read_text().split("\n")[:-1]
