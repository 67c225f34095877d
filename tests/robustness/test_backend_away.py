"""If a server that the session has not started stops answering, rollouts wait for it, and the plan is not used up."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_agentbench.backends.machine.ports import is_free
from pytest_agentbench.lib.process import Child, lives
from pytest_agentbench.lib.wire import Listening
from pytest_agentbench.records import Json
from tests.project import FIND_THEN_ANSWER, WAYS, Project
from tests.robustness.processes import Background
from tests.waits import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

Start = Callable[..., Background]

#: Rollouts in these tests wait this many seconds for a server to come back.
LONG = "--agentbench-budget-connect=60s"


class Server:
    """An engine whose port stays the same when it is started again."""

    def __init__(self, folder: Path, model: str) -> None:
        script = folder / f"{model}.script.json"
        script.write_text(json.dumps([{"ttft_ms": 100, **rule} for rule in FIND_THEN_ANSWER]))
        self._config: Json = {"policy": "script", "script": str(script), "model": model}
        self._log = folder / f"{model}.log"
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._config['port']}/v1"

    @property
    def pid(self) -> int:
        return self._child.process.pid

    def start(self) -> None:
        self._child = Child("pytest_agentbench.engine", self._config, self._log)
        self._config["port"] = self._child.ready(Listening).port

    def kill(self) -> None:
        """Kills the server with SIGKILL. Returns when its port is free."""
        pid = self.pid
        os.kill(pid, signal.SIGKILL)
        self._child.process.wait()
        self._child.close_pipes()
        wait_for(lambda: not lives(pid) and is_free(self._config["port"]), "the end of the server")

    def stop(self) -> None:
        self._child.stop()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Callable[[str], Server]]:
    """Starts servers, and ends them after the test."""
    started: list[Server] = []

    def start(model: str) -> Server:
        started.append(Server(tmp_path, model))
        return started[-1]

    yield start
    for server in started:
        server.stop()


def begun(start: Start, finished: int, *options: str) -> Background:
    """Starts a session without retries, and waits until this number of rollouts has finished."""
    background = start(*options, "--agentbench-concurrency=4", "--agentbench-retries=0", "scenarios/shop")
    background.in_the_middle(finished)
    return background


def is_waited_for(background: Background) -> None:
    """Waits until the session has printed that it waits for the server."""
    wait_for(lambda: "no rollout begins until it answers" in background.output, "the sentence about the pause")


def all_once(background: Background, rollouts: int) -> Json:
    """Asserts that every rollout is ok and none was retried. Returns run.json."""
    assert 0 == background.ended(120), background.output
    run: Json = json.loads((background.directory / "run.json").read_text())
    assert {"ok": rollouts} == Counter(each.status for each in background.rollouts)
    assert run["interruptions"]["attempts"] == sum(len(each.earlier_attempts) for each in background.rollouts)
    return run


@WAYS
def test_a_server_that_is_started_again(project: Project, start: Start, servers: Callable[[str], Server], way: tuple[str, ...]) -> None:
    """If a server dies and is started again, the failed attempts run again without counting as retries.

    Meanwhile, no further attempt begins.
    """
    project.suite(scenarios=16)
    server = servers("m")
    background = begun(start, 3, *way, LONG, f"--agentbench-backend={server.url}")

    server.kill()
    is_waited_for(background)
    server.start()

    run = all_once(background, 16)
    assert {"server": 1} == run["interruptions"]["deaths"]
    assert 1 <= run["interruptions"]["attempts"] <= 4
    assert "16 passed" in background.output


def test_a_server_that_is_suspended(project: Project, start: Start, servers: Callable[[str], Server]) -> None:
    """A suspended server accepts connections but does not answer.

    The calls end by their budget, and rollouts wait until the server continues.
    """
    project.suite(scenarios=12)
    server = servers("m")
    background = begun(
        start, 3, "--agentbench-budget-connect=20s", "--agentbench-budget-first-token=1s", f"--agentbench-backend={server.url}"
    )

    os.kill(server.pid, signal.SIGSTOP)
    try:
        is_waited_for(background)
    finally:
        os.kill(server.pid, signal.SIGCONT)

    assert {"server": 1} == all_once(background, 12)["interruptions"]["deaths"]


def test_an_arm_that_comes_back(project: Project, start: Start, servers: Callable[[str], Server]) -> None:
    """In a session with two servers, nothing begins while one of them is unavailable, and both arms are complete at the end."""
    project.suite(scenarios=12)
    old, new = servers("old"), servers("new")
    background = begun(start, 5, LONG, f"--agentbench-ab=old={old.url},new={new.url}")

    new.kill()
    is_waited_for(background)
    new.start()

    run = all_once(background, 24)
    assert {"new.server": 1} == run["interruptions"]["deaths"]
    assert [12, 12] == [arm["rollouts"]["ok"] for arm in run["ab"]["arms"]]


def test_an_arm_that_stays_away(project: Project, start: Start, servers: Callable[[str], Server]) -> None:
    """If one arm's server does not come back, that arm is given up after the time limit.

    The other arm runs completely, and few attempts are lost.
    """
    project.suite(scenarios=24)
    old, new = servers("old"), servers("new")
    background = start(
        "--agentbench-budget-connect=1s",
        f"--agentbench-ab=old={old.url},new={new.url}",
        "--agentbench-concurrency=3",
        "--agentbench-retries=0",
        "scenarios/shop",
    )
    background.in_the_middle(finished=8)

    new.kill()

    assert background.ended(120) in (1, 4, 6), background.output
    run = json.loads((background.directory / "run.json").read_text())
    by_arm = {arm: Counter(each.status for each in background.rollouts if each.variant == arm) for arm in ("old", "new")}
    assert {"ok": 24} == by_arm["old"]
    assert by_arm["new"]["infra_error"] <= 3
    assert run["plan"]["not_run"] == 24 - by_arm["new"].total()
    assert "is gone: for 1 s GET " in run["ab"]["arms"][1]["failure"]
    assert "is gone: for 1 s GET " in background.output


@pytest.mark.parametrize("arms", ["a={url},b={url}", "agent:tool_calling,agent:react"], ids=["one-url", "one-backend"])
def test_arms_of_one_server(project: Project, start: Start, servers: Callable[[str], Server], arms: str) -> None:
    """Arms with the same server fail together: the session ends, and the rest of the plan is not run."""
    project.suite(scenarios=40)
    server = servers("m")
    background = start(
        "--agentbench-budget-connect=1s",
        f"--agentbench-ab={arms.format(url=server.url)}",
        *([f"--agentbench-backend={server.url}"] if "url" not in arms else []),
        "--agentbench-concurrency=4",
        "scenarios/shop",
    )
    background.in_the_middle(finished=3)

    server.kill()

    assert 6 == background.ended(120), background.output
    run = json.loads((background.directory / "run.json").read_text())
    assert run["plan"]["not_run"] >= 60
    assert sum(each.status == "infra_error" for each in background.rollouts) <= 4
    assert f"is gone: for 1 s GET {server.url}/models got no answer: " in background.output


def test_the_pool_dies_while_the_server_is_away(project: Project, start: Start, servers: Callable[[str], Server]) -> None:
    """If the pool dies while the server is unavailable, the next pool waits as well. Afterwards all rollouts are ok."""
    project.suite(scenarios=16)
    server = servers("m")
    background = begun(start, 3, LONG, f"--agentbench-backend={server.url}")
    server.kill()
    is_waited_for(background)
    pool = background.child("pytest_agentbench.rollouts.pool")
    os.kill(pool, signal.SIGKILL)
    wait_for(lambda: background.children("pytest_agentbench.rollouts.pool") not in ([], [pool]), "the next pool")

    server.start()

    assert {"server": 1, "pool": 1} == all_once(background, 16)["interruptions"]["deaths"]


@pytest.mark.parametrize(("end", "status"), [("ctrl-c", 2), ("time-limit", 6)])
def test_the_session_ends_without_the_server(
    project: Project, start: Start, servers: Callable[[str], Server], end: str, status: int
) -> None:
    """Ctrl-C and the time limit end the session while it waits for the server, and finished rollouts are kept."""
    project.suite(scenarios=16)
    server = servers("m")
    limit = ["--agentbench-time-limit=8s"] if end == "time-limit" else []
    background = start(*limit, LONG, f"--agentbench-backend={server.url}", "--agentbench-concurrency=2", "scenarios/shop")
    background.in_the_middle(finished=3)
    server.kill()
    is_waited_for(background)

    if end == "ctrl-c":
        os.kill(background.process.pid, signal.SIGINT)

    assert status == background.ended(50), background.output
    run = json.loads((background.directory / "run.json").read_text())
    assert run["plan"]["finished"] >= 3
    assert run["plan"]["finished"] + run["plan"]["not_run"] == 16
