"""Processes that agents start with `setsid` and leave running end with the session, however it ends."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_agentbench.lib.process import lives
from tests.project import Project
from tests.robustness.processes import Background
from tests.robustness.test_suite_code import by_word, suite_of
from tests.waits import wait_for

#: Leaves a process running, and answers with the number of living processes that earlier rollouts left.
AGENT = """
import asyncio, subprocess
from pathlib import Path
from pytest_agentbench.lib.process import lives

PIDS = Path(__file__).parent / "pids"

async def run(scenario, llm):
    earlier = PIDS.read_text().split() if PIDS.exists() else []
    left = subprocess.Popen(["setsid", "sleep", "300"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with PIDS.open("a") as pids:
        print(left.pid, file=pids)
    if scenario.id.endswith("waits"):
        await asyncio.sleep(300)
    return str(sum(lives(int(pid)) for pid in earlier))
"""


def leaving(project: Project, words: list[str], isolation: str = "none") -> Path:
    """Creates a suite whose agent leaves a process running in each rollout. Returns the file with their ids."""
    suite_of(project, words, agent={"kind": "./agent.py:run"}, isolation=isolation)
    return project.write("scenarios/shop/agent.py", AGENT).parent / "pids"


def survivors(pids: Path) -> list[int]:
    return [pid for pid in map(int, pids.read_text().split()) if lives(pid)]


def test_leftovers_of_agents_end_with_the_session(project: Project) -> None:
    """Processes that agents started with `setsid` are ended at the session's end, and the summary says how many."""
    pids = leaving(project, ["one", "two"])

    result = project.run("scenarios/shop", "--agentbench-concurrency=1")

    result.stdout.fnmatch_lines(["agentbench: ended 2 processes that agents left running"])
    assert ["0", "1"] == sorted(each.answer for each in by_word(project).values())
    assert [] == survivors(pids)


@pytest.mark.slow
def test_leftovers_of_isolated_agents_end_with_the_rollout(project: Project) -> None:
    """With `isolation: process`, processes that agents left running are ended before the next rollout begins."""
    pids = leaving(project, ["one", "two"], isolation="process")

    result = project.run("scenarios/shop", "--agentbench-concurrency=1")

    result.stdout.no_fnmatch_line("*left running*")
    assert ["0", "0"] == [each.answer for each in by_word(project).values()]
    assert [] == survivors(pids)


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["none", "process"])
def test_a_controller_that_is_killed(project: Project, start: Callable[..., Background], isolation: str) -> None:
    """If the controller gets SIGKILL, the pool ends the processes that agents left running."""
    pids = leaving(project, ["one", "waits"], isolation=isolation)
    background = start("scenarios/shop", "--agentbench-concurrency=1")
    wait_for(lambda: pids.exists() and len(pids.read_text().split()) == 2, "two processes of agents")

    background.process.send_signal(signal.SIGKILL)

    wait_for(lambda: not survivors(pids), "the end of what agents left running", 60)
