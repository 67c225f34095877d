"""The image that `Dockerfile` describes: it builds, runs sessions and node workers, and ends as a container has to."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.docker_image import REVISION, VERSION, Docker, docker_command
from tests.dockerd import NoEngine
from tests.node_workers import NodeWorker, free_port, token_of
from tests.project import ROOT, Project
from tests.robustness.processes import Background
from tests.waits import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

#: An agent that leaves an orphan, which has ended soon. In a container, rollouts do not end after the first three.
AGENT = """
import asyncio, os, subprocess

before = 0

async def run(scenario, llm, tools):
    global before
    before += 1
    subprocess.run(["sh", "-c", "true &"], check=True)
    if "IN_A_CONTAINER" in os.environ and before > 3:
        await asyncio.sleep(3600)
    return "done"
"""

ROLLOUTS = 20

SOURCE = "https://github.com/pytest-agentbench/pytest-agentbench"


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Docker]:
    """The command `docker`, with an engine that has the base of the image."""
    try:
        with docker_command(tmp_path_factory.mktemp("index")) as command:
            yield command
    except NoEngine as why:
        pytest.skip(f"NOT TESTED: the image; {why}")


@pytest.fixture(scope="module")
def image(docker: Docker) -> str:
    """The image, from the builder that needs no BuildKit."""
    done = docker.build(docker.image)
    assert 0 == done.returncode, done.stdout + done.stderr
    return docker.image


class BoxWorker:
    """A node worker in a container of the image. Like a user, it gets the token on stdin."""

    def __init__(self, docker: Docker, port: int, token: Path, name: str, *options: str) -> None:
        self._docker, self._container = docker, f"agentbench-{docker.tag}-{name}"
        settings = ("--interactive", "--network", "host", "--env", "IN_A_CONTAINER=1", "--name", self._container)
        start = [*options, docker.image] if options else [docker.image, "agentbench"]
        words = ("worker", "--join", f"127.0.0.1:{port}", "--token-file", "-", "--node", name, "--slots", "2")
        command = docker.command("run", "--rm", *settings, *start, *words)
        with token.open("rb") as stdin:
            self._process = subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def zombies(self) -> list[str]:
        """Returns the names of zombies in the container. `docker top` does not list any."""
        states = self._docker("exec", self._container, "sh", "-c", "cat /proc/[0-9]*/stat 2>/dev/null || true")
        return re.findall(r"^\d+ (\(.*\)) Z", states, re.MULTILINE)

    def first_command(self) -> str:
        """Returns the command line of the first process."""
        return self._docker("exec", self._container, "cat", "/proc/1/cmdline").replace("\0", " ")

    def stop(self) -> tuple[int, str]:
        """Stops the container. Returns its exit status and its output."""
        self._docker("stop", self._container)
        output, _ = self._process.communicate(timeout=60)
        return self._process.returncode, output

    def clean_up(self) -> None:
        if self._process.poll() is None:
            subprocess.run(self._docker.command("rm", "--force", self._container), check=False, capture_output=True)
        self._process.communicate(timeout=60)


@pytest.fixture
def cleaned() -> Iterator[Callable[[Any], Any]]:
    """Returns a function that returns its argument, and cleans it up at the end of the test."""
    with ExitStack() as stack:

        def cleaned(worker: Any) -> Any:
            stack.callback(worker.clean_up)
            return worker

        yield cleaned


@pytest.fixture
def session(project: Project) -> Iterator[tuple[Background, int]]:
    """A session whose rollouts leave orphans, and the port where node workers join it."""
    project.suite(scenarios=ROLLOUTS, agent={"kind": "./agent.py:run"}, test="def test_it(rollout): pass\n", thresholds={}, timeout=3600)
    project.write("scenarios/shop/agent.py", AGENT)
    port = free_port()
    options = (f"--agentbench-nodes-listen=127.0.0.1:{port}", "--agentbench-nodes-wait=300s", "--agentbench-concurrency=4")
    background = Background(project, *options, "scenarios/shop")
    yield background, port
    background.clean_up()


def test_contents(docker: Docker, image: str) -> None:
    """The image runs as a user with a fixed number, who may write in the working directory, and it has no cache of pip and no source."""
    settings = json.loads(docker("image", "inspect", image))[0]["Config"]
    version = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition('\nversion = "')[2].partition('"')[0]

    assert f"agentbench {version}\n" == docker.run(image, "agentbench", "--version")
    assert docker.run(image).startswith("usage: agentbench")
    assert ("10001:10001", "/work") == (settings["User"], settings["WorkingDir"])
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in settings["Labels"].items()}
    assert ("pytest-agentbench", "Apache-2.0") == (labels["title"], labels["licenses"])
    assert (SOURCE, VERSION, REVISION) == (labels["source"], labels["version"], labels["revision"])
    assert labels["description"]
    assert "10001\n" == docker.run(image, "sh", "-c", "touch new && id -u")
    assert "" == docker.run(image, "sh", "-c", "ls -d /source /root/.cache /tmp/* /home/agentbench/.[a-z]* 2>/dev/null || true")
    assert not [variable for variable in settings["Env"] if variable.startswith("PIP_")]
    assert "127.0.0.1" not in docker("history", "--no-trunc", image)


def test_the_list_of_packages(docker: Docker, image: str) -> None:
    """The image has a list of its Python packages (SBOM) in the format CycloneDX: each with its version, ours as the main one."""
    listed = json.loads(docker.run(image, "cat", "/opt/agentbench/sbom.cdx.json"))
    installed = json.loads(docker.run(image, "/opt/agentbench/bin/pip", "list", "--format", "json"))

    assert "CycloneDX" == listed["bomFormat"]
    assert "pytest-agentbench" == listed["metadata"]["component"]["name"]
    named = {re.sub(r"[-_.]+", "-", each["name"]).lower(): each["version"] for each in listed["components"]}
    ours = named | {"pytest-agentbench": listed["metadata"]["component"]["version"]}
    assert {re.sub(r"[-_.]+", "-", each["name"]).lower(): each["version"] for each in installed} == ours
    assert "cyclonedx-bom" not in named


def test_a_change_of_the_code(docker: Docker, image: str, tmp_path: Path) -> None:
    """If only the code changes, the image has the same layers up to and including the dependencies, and a small one with the package."""
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE", ".env.example", "Dockerfile", ".dockerignore"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, tmp_path)
    for name in ("pytest_agentbench", "scenarios", "backends", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "pytest_agentbench/errors.py").write_text((ROOT / "pytest_agentbench/errors.py").read_text() + "\nCHANGED = True\n")
    changed = image.replace("image:", "changed:")
    done = docker.build(changed, context=tmp_path)
    assert 0 == done.returncode, done.stdout + done.stderr
    before, after = (json.loads(docker("image", "inspect", each))[0]["RootFS"]["Layers"] for each in (image, changed))
    shared = [one for one, other in zip(before, after, strict=True) if one == other]
    sizes = [line.split() for line in docker("history", "--human=false", "--format", "{{.Size}} {{.CreatedBy}}", changed).splitlines()]
    dependencies, package = sorted((int(size) for size, *words in sizes if "COPY" in words or "dir:" in " ".join(words)), reverse=True)

    assert "CHANGED" in docker.run(changed, "python", "-c", "from pytest_agentbench import errors; print(dir(errors))")
    assert shared == before[: len(shared)]
    assert len(before) - len(shared) <= 2, (before, after)
    assert dependencies > 10 * package, sizes


def test_sessions(docker: Docker, image: str, tmp_path: Path) -> None:
    """The whole example in the image runs as its user, and a mounted project as the user of this machine, who owns the reports."""
    shutil.copytree(ROOT / "scenarios/banking", tmp_path / "scenarios/banking")
    shutil.copytree(ROOT / "backends", tmp_path / "backends")
    user, group = os.getuid() or 1234, os.getgid() or 1234  # Root may be another user in the container, and others only themselves.
    for path in (tmp_path, *tmp_path.rglob("*")):
        shutil.chown(path, user, group)
    session = ("pytest", "scenarios/banking", "--agentbench-limit", "2")

    assert "100 passed" in docker.run(image, "sh", "-c", "test $(id -u) = 10001 && pytest scenarios/banking")
    assert "2 passed" in docker.run("--user", f"{user}:{group}", "--volume", f"{tmp_path}:/work", image, *session)
    assert user == (tmp_path / "reports/latest/run.json").stat().st_uid


def test_node_workers(docker: Docker, image: str, project: Project, session: tuple[Background, int], cleaned: Callable[[Any], Any]) -> None:
    """Node workers in containers run rollouts. No orphan stays a zombie. SIGTERM gives leases back, and they run again elsewhere.

    This holds with the entry point of the image, and without it, as in a pod with a command of its own.
    """
    background, port = session
    token = token_of(background)
    boxes = [
        cleaned(BoxWorker(docker, port, token, "box-1")),
        cleaned(BoxWorker(docker, port, token, "box-2", "--entrypoint", "agentbench")),
    ]
    wait_for(lambda: {"w1", "w2"} <= {each.node for each in background.rollouts}, "rollouts on both node workers", 120)

    assert ["first_process agentbench worker" in box.first_command() for box in boxes] == [True, False]
    wait_for(lambda: not [zombie for box in boxes for zombie in box.zombies()], "the removal of zombies")
    for box in boxes:
        status, output = box.stop()
        assert 3 == status, output
        assert "left the session: SIGTERM came" in output
    cleaned(NodeWorker(project, port, token, "--slots", "4", name="elsewhere"))

    assert 0 == background.ended(150), background.output
    assert ROLLOUTS == len({each.key for each in background.rollouts}) == len(background.rollouts)
    assert {"ok"} == {each.status for each in background.rollouts}
    again = [each for each in background.rollouts if each.earlier_attempts]
    assert {"w3"} == {each.node for each in again}
    assert {"box-1", "box-2", "elsewhere"} == {each["node"] for each in project.run_json["nodes"]}


def test_buildkit(docker: Docker) -> None:
    """BuildKit builds the same image."""
    programs = [each for each in ("docker", "/usr/bin/docker") if shutil.which(each)]
    builds = [docker.build(docker.image, program, buildkit=True) for program in programs]
    if all("buildx component is missing" in done.stdout + done.stderr for done in builds):
        pytest.skip("NOT TESTED: the image with BuildKit; the command `docker` needs buildx here (docker-buildx)")

    assert 0 in {done.returncode for done in builds}, [done.stderr[-3000:] for done in builds]
    assert "10001\n" == docker.run(docker.image, "id", "-u")
