"""Faults in sessions on the real NVIDIA Dynamo: the message names the cause, finished rollouts are kept, and no process is left."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pytest_agentbench.backends.machine.ports import Reserved
from pytest_agentbench.backends.machine.virtual_environments import environments_folder, resolve_python
from pytest_agentbench.errors import MissingError
from tests.project import WAYS, Project
from tests.real.booted_stack import ROOT
from tests.robustness.processes import Background, command_of, descendants
from tests.small_stacks import left, marked, own_folder, until_gone
from tests.waits import wait_for

pytestmark = pytest.mark.timeout(240)

Session = Callable[..., Background]

ENVIRONMENTS = environments_folder()  # read here, because the sessions of tests have another HOME

#: The mocker writes until its limit, so every answer is truncated.
SAYS_MUCH = "def test_it(rollout): assert rollout.status == 'limit'\n"

#: Answers take about two seconds, and all workers get requests.
MOCKER = (
    "--agentbench-backend=dynamo-mocker",
    *(f"--agentbench-set=backend.settings.{each}" for each in ("speedup=1", "policy=round-robin")),
)


@pytest.fixture(autouse=True)
def stacks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yields the folder with the stacks of the test. Afterwards it must be empty."""
    monkeypatch.setenv("AGENTBENCH_ENVS", str(ENVIRONMENTS))
    try:
        resolve_python("dynamo", ROOT)
    except MissingError as error:
        pytest.skip(f"NOT TESTED: {error}")
    with own_folder(monkeypatch) as folder:
        yield folder


@pytest.fixture
def session(project: Project) -> Iterator[Session]:
    """Starts a session on Dynamo's mocker in the background, and waits until it has finished a number of rollouts."""
    started: list[Background] = []

    def start(*arguments: str, finished: int = 1, scenarios: int = 24) -> Background:
        project.suite(scenarios=scenarios, test=SAYS_MUCH, agent={"kind": "tool_calling", "max_tokens": 300})
        started.append(Background(project, *MOCKER, "--agentbench-concurrency=4", *arguments, "scenarios/shop"))
        if finished:
            wait_for(lambda: len(started[-1].rollouts) >= finished or started[-1].process.poll() is not None, "the first rollouts", 120)
            assert started[-1].process.poll() is None, started[-1].output
            started[-1].seen.update(descendants(started[-1].process.pid))
        return started[-1]

    yield start
    for each in started:
        each.clean_up()


def kill(stacks: Path, program: str) -> None:
    """Sends SIGKILL to the first process of the stack that runs a program."""
    pid = min(pid for pid, _ in marked(stacks) if program in command_of(pid))
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("migration", [0, 3])
def test_a_worker_is_killed(session: Session, stacks: Path, migration: int) -> None:
    """With migration, calls continue on another worker.

    Without it, they fail with Dynamo's own error, and their rollouts are repeated.
    """
    background = session(
        f"--agentbench-set=backend.env.DYN_MIGRATION_LIMIT={migration}", "--agentbench-set=backend.services.worker.restart=1"
    )
    time.sleep(1)  # Rollouts end together, so the next answers, which take two seconds, are now in flight.
    kill(stacks, "dynamo_mocker.py")

    assert 0 == background.ended(180), background.output
    assert [] == left(stacks)
    assert ["limit"] * 24 == [rollout.status for rollout in background.rollouts]
    again = [rollout.earlier_attempts[0].reason for rollout in background.rollouts if rollout.earlier_attempts]
    broken_off = [reason for reason in again if "Internal server error" in reason]
    refused = [reason for reason in again if "Service temporarily unavailable" in reason]  # no part of these answers had arrived yet
    assert [] == broken_off if migration else broken_off + refused, again
    assert migration == 0 or re.search(r"model_migration_total", (background.directory / "samples.jsonl").read_text())
    run = json.loads((background.directory / "run.json").read_text())
    assert [1] == list(run["backend"]["restarts"].values())


@WAYS
def test_the_frontend_is_killed(session: Session, stacks: Path, way: tuple[str, ...]) -> None:
    """If the frontend is killed, the stack is lost.

    The remaining tests report that, and the session reports how many rollouts are saved.
    """
    background = session(*way)
    kill(stacks, "dynamo.frontend")

    assert 6 == background.ended(60)
    assert [] == left(stacks)
    assert "the backend 'dynamo-mocker' is gone: frontend ended with exit code -9: `python " in background.output
    assert "dynamo_frontend.py --policy=round-robin " in background.output
    saved = re.search(r"^(\d+) finished rollouts? (?:is|are) saved in .*rollouts.jsonl$", background.output, re.MULTILINE)
    assert saved and 1 <= int(saved[1]) <= len(background.rollouts)


@WAYS
def test_the_controller_is_killed(session: Session, stacks: Path, way: tuple[str, ...]) -> None:
    """If the controller is killed, the stack daemon ends all processes of Dynamo. The journal has the finished rollouts."""
    background = session(*way)
    os.kill(background.process.pid, signal.SIGKILL)

    background.ended()
    until_gone(stacks, 60)
    assert {"limit"} == {rollout.status for rollout in background.rollouts}


def test_an_xdist_worker_is_killed(session: Session, stacks: Path) -> None:
    """If a worker of pytest-xdist is killed, no rollout is lost, because rollouts do not run there."""
    background = session("-n", "2", scenarios=12)
    worker = next(pid for pid in descendants(background.process.pid) if "exec(eval(sys.stdin.readline()))" in command_of(pid))
    os.kill(worker, signal.SIGKILL)

    background.ended(120)
    assert [] == left(stacks)
    assert ["limit"] * 12 == [rollout.status for rollout in background.rollouts]


def test_an_engine_that_never_gets_ready(session: Session, stacks: Path) -> None:
    """If a worker is missing, the message has the numbers of workers as Dynamo counts them."""
    changes = ("ready.workers.aggregated=5", "ready.timeout=20")
    background = session(*(f"--agentbench-set=backend.{change}" for change in changes), finished=0, scenarios=2)

    assert 6 == background.ended(120)
    assert [] == left(stacks)
    assert "not ready in time, check `workers` failed: " in background.output
    assert "workers: 4 of 5 aggregated" in background.output


def test_a_full_disk_during_the_boot(session: Session, stacks: Path, small_disk: Path) -> None:
    """If the disk is full while the stack boots, the message names the disk. Services may continue without their logs."""
    background = session(finished=0, scenarios=2)
    wait_for(lambda: marked(stacks), "the start of the workers", 60)
    fill(small_disk)

    assert 6 == background.ended(120)
    assert [] == left(stacks)
    assert "No space left on device" in background.output or f"the disk of {small_disk}" in background.output
    assert "INTERNALERROR" not in background.output


def test_a_stolen_port(session: Session, stacks: Path) -> None:
    """If another process takes the frontend's port before it starts, the message names that process, and the session does not wait."""
    reserved = Reserved()
    port = reserved.take()
    reserved.close()
    changes = (f"services.frontend.port={port}", "services.frontend.after=[worker]")
    background = session(*(f"--agentbench-set=backend.{change}" for change in changes), finished=0, scenarios=2)
    wait_for(lambda: marked(stacks), "the start of the workers", 60)
    with socket.create_server(("127.0.0.1", port)):
        assert 6 == background.ended(120)

    assert [] == left(stacks)
    assert f"its port {port} is taken by pid {os.getpid()} (" in background.output


@pytest.fixture
def small_disk(project: Project) -> Iterator[Path]:
    """Yields a folder for the reports on its own disk of 4 MiB."""
    reports = project.root / "reports"
    reports.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", reports], check=False, capture_output=True).returncode
    ):
        pytest.skip("NOT TESTED: mounting a small disk needs root")
    yield reports
    subprocess.run(["umount", "--lazy", reports], check=True)


def fill(disk: Path) -> None:
    with suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


def test_a_full_disk_in_the_middle(session: Session, stacks: Path, small_disk: Path) -> None:
    """If the disk becomes full in the middle, tests are an ERROR that says so. Written records are kept, and the stack is stopped."""
    background = session()
    fill(small_disk)

    assert 6 == background.ended(120)
    assert [] == left(stacks)
    assert "No space left on device" in background.output
    assert "INTERNALERROR" not in background.output
    assert {"limit"} == {rollout.status for rollout in background.rollouts}


def test_a_disk_that_is_full_from_the_start(session: Session, stacks: Path, small_disk: Path) -> None:
    """If the disk is full from the start, nothing is booted, and the session reports the reason."""
    fill(small_disk)
    background = session(finished=0, scenarios=2)

    assert pytest.ExitCode.USAGE_ERROR == background.ended(120)
    assert [] == left(stacks)
    assert f"reports cannot be written to {small_disk}: No space left on device; name another directory" in background.output
    assert "INTERNALERROR" not in background.output


def test_two_sessions_at_once(session: Session, stacks: Path) -> None:
    """Two sessions at once have a Dynamo each, which finds only its own workers."""
    two = [session(finished=0, scenarios=4) for _ in range(2)]

    assert [0, 0] == [each.ended(180) for each in two], two[0].output
    assert [] == left(stacks)
    assert 2 == len([*two[0].root.glob("reports/2*/run.json")])


@pytest.mark.parametrize("finished", [0, 1], ids=["booting", "running"])
def test_ctrl_c_twice(session: Session, stacks: Path, finished: int) -> None:
    """After Ctrl-C twice, all processes of Dynamo end soon."""
    background = session(finished=finished)
    wait_for(lambda: len(marked(stacks)) >= 3, "the start of Dynamo", 60)
    for _ in range(2):
        if background.process.poll() is None:
            os.kill(background.process.pid, signal.SIGINT)
        time.sleep(0.2)

    background.ended(60)
    until_gone(stacks, 60)
