"""If a suite's code does not end when it is cancelled, only its own rollout or score fails, and the session ends."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable

import pytest

from pytest_agentbench.lib.process import lives
from tests.project import Project
from tests.robustness.processes import Background
from tests.waits import wait_for

pytestmark = pytest.mark.timeout(240)

Start = Callable[..., Background]

ANY = "def test_it(rollout): pass\n"
LEFT = "; its code did not end when it was cancelled, and was left running"

CODE = """
import asyncio, signal, time
from pathlib import Path

HERE = Path(__file__).parent
signal.signal(signal.SIGTERM, lambda *_: (HERE / "terminated").touch())

async def endless():
    while True:
        try:
            await asyncio.sleep(100)
        except BaseException:
            pass

async def run(scenario, llm, tools):
    word = scenario.id.partition("_")[2]
    if word.startswith("hangs"):
        (HERE / "hangs").touch()
        await endless()
    if word == "exits":
        try:
            await asyncio.sleep(100)
        finally:
            raise GeneratorExit
    if word == "spawns":
        asyncio.get_running_loop().run_in_executor(None, time.sleep, 3600)
        asyncio.create_task(endless())
    if word in ("calls", "works"):
        reply = await llm.chat(scenario.messages, tools.schemas)
        for call in reply.tool_calls:
            await tools.call("wait" if word == "calls" else call.name, call.arguments, 1)

async def slow(scenario, rollout):
    if rollout.scenario.endswith("scores"):
        await endless()
    return 1.0
"""


def shop(project: Project, words: list[str], **keys: object) -> None:
    """Creates a suite whose scenarios are named shop_<word>. The word decides what the code does."""
    usual = {"agent": {"kind": "./code.py:run"}, "scorers": ["tsq", "./code.py:slow"], "thresholds": {}, "timeout": 3, "test": ANY}
    project.suite(**{**usual, **keys})  # type: ignore[arg-type]  # keys of suite.yaml
    project.write("scenarios/shop/data.json", json.dumps([Project.entry(f"shop_{word}") for word in words]))
    project.write("scenarios/shop/code.py", CODE)


@pytest.mark.parametrize(
    ("isolation", "left"), [("none", LEFT), pytest.param("process", "", marks=pytest.mark.slow)], ids=["pool", "process"]
)
def test_code_that_does_not_end(project: Project, isolation: str, left: str) -> None:
    """Agents and scorers that ignore cancellation get a reason that says so. Other rollouts are not affected, and the session ends.

    With isolation, such a process is killed, so that nothing is left running.
    """
    shop(project, ["hangs", "exits", "spawns", "scores", "works"], isolation=isolation)

    result = project.run("--agentbench-retries=0", "scenarios/shop")

    assert 0 == result.ret
    rollouts = {each.scenario.partition("_")[2]: each for each in project.rollouts}
    assert ("limit", f"time: the rollout took longer than 3 s{left}") == (rollouts["hangs"].status, rollouts["hangs"].reason)
    assert {"slow": f"the scorer took longer than 3 s{left}"} == rollouts["scores"].score_errors
    assert ["ok"] * 3 == [rollouts[word].status for word in ("spawns", "scores", "works")]
    assert (1.0, 1.0) == (rollouts["works"].score("tsq"), rollouts["works"].score("slow"))
    if isolation == "none":
        assert ("agent_error", True) == (rollouts["exits"].status, rollouts["exits"].reason.startswith("GeneratorExit: "))
    assert not (project.root / "scenarios/shop/terminated").exists()


TOOLS = (
    CODE
    + """
class Shop:
    def __init__(self, scenario):
        if scenario.id == "shop_opens":
            time.sleep(3600)

    async def wait(self, item: str, count: int = 1) -> str:
        "Waits."
        await endless()
"""
)


@pytest.mark.slow
def test_tools_that_do_not_end(project: Project) -> None:
    """A tool that ignores cancellation makes its rollout a `limit`. Tools that take too long to create make it an infra_error."""
    shop(project, ["calls", "opens", "idles"], tools={"kind": "python", "module": "./code.py:Shop"})
    project.write("scenarios/shop/code.py", TOOLS)
    entries = [{**Project.entry(f"shop_{word}"), "available_tools": [], "expected_tool_calls": []} for word in ("calls", "opens", "idles")]
    project.write("scenarios/shop/data.json", json.dumps(entries))

    project.run("--agentbench-retries=0", "scenarios/shop")

    rollouts = {each.scenario.partition("_")[2]: each for each in project.rollouts}
    assert ("limit", f"time: the rollout took longer than 3 s{LEFT}") == (rollouts["calls"].status, rollouts["calls"].reason)
    assert ("infra_error", True) == (
        rollouts["opens"].status,
        "Shop cannot be created: it took longer than 3 s" in rollouts["opens"].reason,
    )
    assert "ok" == rollouts["idles"].status


@pytest.mark.slow
def test_ctrl_c(project: Project, start: Start) -> None:
    """Ctrl-C does not wait for code that ignores cancellation: the session ends with its report, and no process is left."""
    shop(project, ["hangs"], timeout=600)
    background = start("scenarios/shop")
    wait_for((project.root / "scenarios/shop/hangs").exists, "the agent")
    pool = background.child("pytest_agentbench.rollouts.pool")

    os.kill(background.process.pid, signal.SIGINT)

    assert 2 == background.ended(60)
    assert not lives(pool)
    assert not (project.root / "scenarios/shop/terminated").exists()
    assert " pytest --agentbench-resume=" in background.output


@pytest.mark.slow
def test_thirty_endless_agents_of_300(project: Project) -> None:
    """If many of the agents in flight ignore cancellation, each of them is a `limit`, and all other rollouts finish."""
    shop(project, [f"{'hangs' if number % 10 == 0 else 'idles'}{number}" for number in range(300)])

    result = project.run("--agentbench-concurrency=48", "scenarios/shop")

    assert 0 == result.ret
    assert {"limit": 30, "ok": 270} == Counter(each.status for each in project.rollouts)
    assert {30} == {sum(LEFT in each.reason for each in project.rollouts)}
