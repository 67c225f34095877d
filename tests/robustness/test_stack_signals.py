"""Signals to a session on a stack, and to its parts: finished rollouts are kept, and nothing of the stack is left."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path

import pytest

from pytest_agentbench.backends.stack.registry import clean_up_orphans
from pytest_agentbench.lib.process import lives
from pytest_agentbench.reports import phrases
from pytest_agentbench.reports.document import Level
from tests.findings import report_of, said
from tests.project import WAYS, Project
from tests.robustness.processes import Background, command_of, descendants
from tests.small_stacks import PASSES, SERVICE, agentbench, daemon, left, marked, own_folder, stack, until_gone
from tests.waits import wait_for

Start = Callable[..., Background]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture(autouse=True)
def stacks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the test's stacks. Afterwards no stack may be left."""
    with own_folder(monkeypatch) as folder:
        yield folder


@pytest.fixture
def running(project: Project, start: Start) -> Start:
    """A session with a rollout in its journal and many to come."""

    def run(*arguments: str) -> Background:
        stack(project, "--think", "0.5")
        project.suite(scenarios=100, test=PASSES)
        background = start(*arguments, "--agentbench-backend=small", "--agentbench-concurrency=2", "scenarios/shop")
        background.in_the_middle()
        return background

    return run


@pytest.fixture
def booting(project: Project, start: Start, stacks: Path) -> Start:
    """A session whose stack does not become ready."""

    def run(*arguments: str) -> Background:
        stack(project, "--slow", "600")
        project.suite(scenarios=2, test=PASSES)
        background = start(*arguments, "--agentbench-backend=small", "scenarios/shop")
        wait_for(lambda: marked(stacks), "the start of the service")
        background.seen.update(descendants(background.process.pid))
        return background

    return run


@WAYS
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_in_the_middle(running: Start, stacks: Path, number: signal.Signals, way: tuple[str, ...]) -> None:
    """Ctrl-C and SIGTERM stop the stack before the session ends, and the report has the finished rollouts."""
    background = running(*way)

    os.kill(background.process.pid, number)

    assert 2 == background.ended()
    assert [] == left(stacks)
    run = json.loads((background.directory / "run.json").read_text())
    assert 1 <= run["suites"]["shop"]["rollouts"]["ok"] == len([each for each in background.rollouts if each.status == "ok"])
    assert " stopped in " in (background.directory / "backend" / "stack_daemon.log").read_text()
    assert "INTERNALERROR" not in background.output


@WAYS
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_while_the_stack_starts(booting: Start, stacks: Path, number: signal.Signals, way: tuple[str, ...]) -> None:
    """Ctrl-C and SIGTERM end a session at once even if its stack is still starting."""
    background = booting(*way)

    os.kill(background.process.pid, number)

    assert 2 == background.ended()
    assert [] == left(stacks)
    assert "INTERNALERROR" not in background.output


@WAYS
@pytest.mark.parametrize("when", ["booting", "running"])
@pytest.mark.parametrize("pause", [0.02, 0.2])
def test_ctrl_c_twice(request: pytest.FixtureRequest, stacks: Path, when: str, pause: float, way: tuple[str, ...]) -> None:
    """After a second Ctrl-C, the session ends and nothing of the stack is left."""
    background: Background = request.getfixturevalue(when)(*way)

    os.kill(background.process.pid, signal.SIGINT)
    time.sleep(pause)
    if background.process.poll() is None:
        os.kill(background.process.pid, signal.SIGINT)

    background.ended()
    until_gone(stacks)


@WAYS
@pytest.mark.parametrize("when", ["booting", "running"])
def test_the_controller_is_killed(request: pytest.FixtureRequest, stacks: Path, when: str, way: tuple[str, ...]) -> None:
    """SIGKILL of pytest ends the stack, and finished rollouts are in the journal."""
    background: Background = request.getfixturevalue(when)(*way)

    os.kill(background.process.pid, signal.SIGKILL)

    assert -signal.SIGKILL == background.ended()
    until_gone(stacks)
    assert when == "booting" or {"ok"} == {rollout.status for rollout in background.rollouts}


def test_a_worker_is_killed(project: Project, start: Start, stacks: Path) -> None:
    """SIGKILL of an xdist worker loses no rollout: a new worker reads the stored ones."""
    stack(project, "--think", "0.2")
    project.suite(scenarios=20, test=PASSES)
    background = start("-n", "2", "--agentbench-backend=small", "scenarios/shop")
    background.in_the_middle()
    worker = next(pid for pid in descendants(background.process.pid) if "exec(eval(sys.stdin.readline()))" in command_of(pid))

    os.kill(worker, signal.SIGKILL)

    background.ended(60)
    assert [] == left(stacks)
    assert 20 == len({rollout.scenario for rollout in background.rollouts}) == len(background.rollouts)
    assert {"ok"} == {rollout.status for rollout in background.rollouts}


STACK_PARTS = {"pool": "pytest_agentbench.rollouts.pool", "tap": "pytest_agentbench.tap"}


PARTS = ("stack daemon", "pool", "tap")


@pytest.mark.parametrize("parts", [each for size in (1, 2, 3) for each in combinations(PARTS, size)], ids="+".join)
def test_parts_are_killed(project: Project, start: Start, stacks: Path, parts: tuple[str, ...]) -> None:
    """If any of stack daemon, pool and tap die at once, the stack is started again if needed, and every rollout is ok and has one
    record.
    """
    stack(project, "--think", "0.5")
    project.suite(scenarios=10, test=PASSES)
    background = start("--agentbench-backend=small", "--agentbench-concurrency=2", "--agentbench-retries=0", "scenarios/shop")
    background.in_the_middle(finished=2)
    pids = [daemon(stacks) if part == "stack daemon" else background.child(STACK_PARTS[part]) for part in parts]

    for pid in pids:
        os.kill(pid, signal.SIGKILL)

    assert 0 == background.ended(90), background.output
    assert [] == left(stacks)
    assert {f"shop-{number}": ["ok"] for number in range(10)} == {
        name: [each.status for each in background.rollouts if each.scenario == name]
        for name in {each.scenario for each in background.rollouts}
    }
    deaths = json.loads((background.directory / "run.json").read_text())["interruptions"]["deaths"]
    assert dict.fromkeys(parts, 1) == deaths


#: The service's behaviour at its second start, and the words about it in the reason.
SECOND_BOOTS = {
    "dies": ("exit 3", "engine ended with exit code 3"),
    "hangs": ("exec sleep 600", "engine is not ready in time"),
}


@pytest.mark.parametrize("way", SECOND_BOOTS)
def test_a_second_start_fails(project: Project, start: Start, stacks: Path, way: str) -> None:
    """If the stack of a killed daemon does not start again, the session ends with a reason that names service and seconds."""
    then, reason = SECOND_BOOTS[way]
    command = (
        f"if [ -e {project.root}/booted ]; then {then}; fi; touch {project.root}/booted; exec {sys.executable} {SERVICE} --port {{port}}"
    )
    stack(project, service={"run": ["sh", "-c", f"{command} --think 0.5"]}, ready={"timeout": 15})
    project.suite(scenarios=100, test=PASSES)
    background = start("--agentbench-backend=small", "--agentbench-concurrency=2", "scenarios/shop")
    background.in_the_middle()

    os.kill(daemon(stacks), signal.SIGKILL)

    assert 6 == background.ended(90), background.output
    assert [] == left(stacks)
    failure = json.loads((background.directory / "run.json").read_text())["backend"]["failure"]
    assert re.search(r"booted again, and did not serve after \d+ s \(ready\.timeout: 15 s\): ", failure)
    assert reason in failure
    assert "the daemon of the stack has died" in failure


@WAYS
def test_controller_and_stack_daemon_are_killed(project: Project, running: Start, stacks: Path, way: tuple[str, ...]) -> None:
    """If controller and stack daemon are killed, the service keeps running.

    `agentbench cleanup` ends it, and a second cleanup finds nothing.
    """
    background = running(*way)

    os.kill(daemon(stacks), signal.SIGKILL)
    os.kill(background.process.pid, signal.SIGKILL)
    background.ended()
    ((pid, home),) = marked(stacks)
    said = agentbench(project, "cleanup").stdout

    # Other processes may have left something, too.
    assert f"{home}: process {pid}\n" in said
    assert [] == left(stacks)
    assert home not in agentbench(project, "cleanup").stdout


def test_the_stack_daemon_is_suspended(running: Start, stacks: Path) -> None:
    """A session whose stack daemon was suspended by SIGSTOP ends it and the services, and says so in one sentence."""
    background = running()
    suspended = daemon(stacks)

    os.kill(suspended, signal.SIGSTOP)
    os.kill(background.process.pid, signal.SIGINT)

    assert 2 == background.ended(60)
    assert [] == left(stacks)
    assert 1 == background.output.count(f"process {suspended}, was suspended by SIGSTOP for 5 s, so it was ended by SIGKILL")
    assert "INTERNALERROR" not in background.output


def test_the_stack_daemon_is_suspended_while_the_stack_starts(booting: Start, stacks: Path) -> None:
    """If the stack daemon is suspended during the start, the session ends with a reason that names it, and nothing of the stack is left."""
    background = booting()
    suspended = daemon(stacks)

    os.kill(suspended, signal.SIGSTOP)

    assert 6 == background.ended(60)
    assert [] == left(stacks)
    assert (
        f"the daemon of the stack, process {suspended}, was suspended by SIGSTOP for 5 s, and the stack did not start" in background.output
    )


def test_another_session_ends_leftovers(project: Project, running: Start, stacks: Path) -> None:
    """A session on the embedded engine ends the leftovers of a killed session and its daemon, and says so."""
    background = running()
    os.kill(daemon(stacks), signal.SIGKILL)
    os.kill(background.process.pid, signal.SIGKILL)
    background.ended()
    ((orphan, _),) = marked(stacks)

    result = project.run("--agentbench-backend=embedded", "scenarios/shop", "-k", "shop-1]")

    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"agentbench: cleaned up after a killed stack daemon: small (process {orphan})"])
    assert [] == left(stacks)


def test_the_stack_daemon_of_a_kept_stack_is_killed(project: Project, stacks: Path) -> None:
    """If the daemon of a kept stack is killed, the next session cleans up the leftovers, says so in one line, and starts its own stack."""
    stack(project)
    project.suite(scenarios=1, test=PASSES)
    session = ("--agentbench-backend=small", "scenarios/shop")
    project.run("--agentbench-keep-backend=10m", *session).assert_outcomes(passed=1)
    ((orphan, _),) = marked(stacks)
    os.kill(daemon(stacks), signal.SIGKILL)

    result = project.run("-v", *session)

    result.assert_outcomes(passed=1)
    what = f"cleaned up after a killed stack daemon: small (process {orphan})"
    assert what in result.stdout.str()
    assert [what] == [backend.reaped for (backend,) in said(report_of(project.directory, Level.FULL), phrases.boot)]
    assert (False, what) == (project.run_json["backend"]["reused"], project.run_json["backend"]["reaped"])
    assert not lives(orphan)


def test_a_new_stack_folder_is_not_a_leftover(project: Project, stacks: Path) -> None:
    """Cleaning up keeps the folder that another session has just created for its daemon."""
    fresh = stacks / "small-0815"
    fresh.mkdir(parents=True)

    assert "" == clean_up_orphans()
    assert fresh.is_dir()
    fresh.rmdir()


def test_a_service_is_killed(running: Start, stacks: Path) -> None:
    """If a service ends with exit code -9, a hint says what that usually means."""
    background = running()

    os.kill(marked(stacks)[0][0], signal.SIGKILL)

    assert 6 == background.ended()
    assert "engine ended with exit code -9" in background.output
    assert "hint: it was killed by SIGKILL, usually by the kernel's out-of-memory killer, otherwise by `kill -9`" in background.output
