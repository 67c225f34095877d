"""Signals to the pytest that the user started: finished rollouts are kept, and no process is left."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable

import pytest

from pytest_agentbench.lib.process import lives
from pytest_agentbench.records import Json
from pytest_agentbench.reports import phrases
from pytest_agentbench.reports.document import Level
from pytest_agentbench.rollouts.pool.__main__ import GRACE
from tests.findings import report_of, said
from tests.project import FIND_THEN_ANSWER, WAYS, Project
from tests.robustness.processes import SERVICES, Background, command_of
from tests.waits import wait_for

pytestmark = pytest.mark.slow

Start = Callable[..., Background]


#: Two scenarios end at once, and the others take longer than any test waits.
QUICK_AND_SLOW: list[Json] = [
    {"match": {"contains": "Customer shop-0:"}, **FIND_THEN_ANSWER[1]},
    {"match": {"contains": "Customer shop-1:"}, **FIND_THEN_ANSWER[1]},
    {"text": "This takes its time.", "ttft_ms": 200, "stall": {"after": 1, "ms": 300_000}},
]


@pytest.fixture
def running(project: Project, start: Start) -> Start:
    """A session with two rollouts in its journal and the others in flight."""

    def run(*arguments: str) -> Background:
        project.backend(QUICK_AND_SLOW)
        project.suite(scenarios=6, thresholds={"tsq": 0.0})
        background = start(*arguments, "--agentbench-concurrency=4", "scenarios/shop")
        pids = background.in_the_middle(finished=2)
        # A process that has just ended has no command.
        assert {*SERVICES} <= {word for pid in pids for word in command_of(pid).split()[-1:]}
        return background

    return run


def leftovers(background: Background) -> list[str]:
    return [command_of(pid) for pid in background.seen if lives(pid)]


@WAYS
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_session_reports_what_it_has(running: Start, number: signal.Signals, way: tuple[str, ...]) -> None:
    """After Ctrl-C or SIGTERM the exit status is 2, the report covers the finished rollouts and counts the missing ones, and no process is
    left.
    """
    background = running(*way)

    os.kill(background.process.pid, number)

    assert 2 == background.ended()
    assert [] == leftovers(background)
    assert {"shop-0", "shop-1"} == {rollout.scenario for rollout in background.rollouts}
    run = json.loads((background.directory / "run.json").read_text())
    assert (2, {"rollouts": 6, "finished": 2, "not_run": 4}) == (run["exit_status"], run["plan"])
    assert 2 == run["suites"]["shop"]["rollouts"]["ok"]
    for level in (Level.SUMMARY, Level.VERBOSE):
        told = said(report_of(background.directory, level), phrases.not_run)
        assert [(6, 4)] == [(each.plan.rollouts, each.plan.not_run) for (each,) in told]
    assert "4 of 6 planned rollouts (66.7 %) were not run" in " ".join(background.output.split())
    assert "KeyboardInterrupt" in background.output
    assert "INTERNALERROR" not in background.output
    assert "no tests ran" not in background.output
    assert background.directory == (background.root / "reports/latest").resolve()


#: This agent takes long to end after it was cancelled.
STUBBORN = """
import asyncio
from pathlib import Path

async def run(scenario):
    if scenario.id == "shop-0":
        return
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        Path(__file__).with_name(f"cancelled-{scenario.id}").touch()
        await asyncio.sleep(600)
"""


@WAYS
def test_ctrl_c_twice(project: Project, start: Start, way: tuple[str, ...]) -> None:
    """A second Ctrl-C ends the running agents. Reports and the command for resuming are still there, without a traceback."""
    project.suite(scenarios=3, agent={"kind": "./agent.py:run"}, thresholds={"tsq": 0.0})
    project.write("scenarios/shop/agent.py", STUBBORN)
    background = start(*way, "--agentbench-concurrency=3", "scenarios/shop")
    background.in_the_middle()

    os.killpg(background.process.pid, signal.SIGINT)
    wait_for(lambda: len([*(project.root / "scenarios/shop").glob("cancelled-*")]) == 2, "the cancellation")
    os.killpg(background.process.pid, signal.SIGINT)

    assert 2 == background.ended()
    assert [] == leftovers(background)
    assert "Traceback" not in background.output
    assert " pytest --agentbench-resume=" in background.output
    assert "no tests ran" not in background.output
    run = json.loads((background.directory / "run.json").read_text())
    assert (2, "INTERRUPTED", {"rollouts": 3, "finished": 1, "not_run": 2}) == (run["exit_status"], run["verdict"], run["plan"])


def test_ctrl_c_before_the_first_test(project: Project, start: Start) -> None:
    """If the first test still waits for its rollout but another one is recorded, pytest's last line does not say that no tests ran."""
    project.backend([{"match": {"contains": "Customer shop-1:"}, **FIND_THEN_ANSWER[1]}, *QUICK_AND_SLOW[2:]])
    project.suite(scenarios=2)
    background = start("--agentbench-concurrency=2", "scenarios/shop")
    background.in_the_middle()

    os.kill(background.process.pid, signal.SIGINT)

    assert 2 == background.ended()
    assert "= 1 rollout recorded, no test finished in " in background.output


def test_ctrl_c_in_the_first_test(project: Project, start: Start) -> None:
    """If Ctrl-C comes during the first test, pytest's last line does not say that no tests ran."""
    code = (
        "import time\nfrom pathlib import Path\ndef test_it(rollout):\n    Path(__file__).with_name('begun').touch()\n    time.sleep(600)\n"
    )
    project.suite(scenarios=1, test=code)
    background = start("scenarios/shop")
    wait_for((project.root / "scenarios/shop/begun").exists, "the test")

    os.kill(background.process.pid, signal.SIGINT)

    assert 2 == background.ended()
    assert "= 1 rollout recorded, no test finished in " in background.output


@WAYS
def test_a_killed_session_leaves_nothing_behind(running: Start, way: tuple[str, ...]) -> None:
    """SIGKILL of the controller ends engine, tap, pool and workers within seconds. The journal has the finished rollouts."""
    background = running(*way)

    os.kill(background.process.pid, signal.SIGKILL)

    wait_for(lambda: not leftovers(background), "the end of all processes of the session", seconds=10)
    assert -signal.SIGKILL == background.ended()
    assert {"shop-0", "shop-1"} == {rollout.scenario for rollout in background.rollouts}
    assert not (background.directory / "run.json").exists()


def test_a_blocking_agent_does_not_outlive_the_controller(project: Project, start: Start) -> None:
    """If the controller is killed, neither an agent that blocks the pool's event loop nor its threads keep the pool running beyond its
    grace period.
    """
    project.suite(scenarios=1, agent={"kind": "./agent.py:Agent"})
    project.write(
        "scenarios/shop/agent.py",
        """
import asyncio, time
from pathlib import Path

class Agent:
    async def run(self, scenario, llm, tools):
        asyncio.get_running_loop().run_in_executor(None, time.sleep, 600)
        Path(__file__).with_name("started").touch()
        time.sleep(600)
""",
    )
    background = start("scenarios/shop")
    wait_for((project.root / "scenarios/shop/started").exists, "the agent's start")
    pool = background.child("pytest_agentbench.rollouts.pool")

    os.kill(background.process.pid, signal.SIGKILL)

    wait_for(lambda: not lives(pool), "the end of the pool", seconds=2 * GRACE)


def test_an_interrupt_while_the_backend_boots(project: Project, start: Start) -> None:
    """Ctrl-C does not wait for a server that does not answer."""
    project.suite(scenarios=1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        background = start(f"--agentbench-backend=http://127.0.0.1:{silent.getsockname()[1]}/v1", "scenarios/shop")
        silent.settimeout(20)
        asked, _ = silent.accept()
        wait_for(lambda: "collected 1 item" in background.output, "the end of collection")

        os.kill(background.process.pid, signal.SIGINT)

        assert 2 == background.ended(60)
        asked.close()
    assert [] == leftovers(background)


def test_an_interrupt_while_agents_block(project: Project, start: Start) -> None:
    """Ctrl-C does not wait for the threads of blocking agents."""
    project.suite(scenarios=1, agent={"kind": "./agent.py:run"})
    code = "import time\nfrom pathlib import Path\ndef run():\n    Path(__file__).with_name('started').touch()\n    time.sleep(600)\n"
    project.write("scenarios/shop/agent.py", code)
    background = start("scenarios/shop")
    wait_for((project.root / "scenarios/shop/started").exists, "the agent's start")
    background.seen.add(background.child("pytest_agentbench.rollouts.pool"))

    os.kill(background.process.pid, signal.SIGINT)

    assert 2 == background.ended()
    assert [] == leftovers(background)
