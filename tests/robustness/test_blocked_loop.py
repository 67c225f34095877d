"""One line that blocks the event loop which all rollouts share: it is named, it costs its own rollout, and the others go on."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable

import pytest

from pytest_agentbench.lib.process import lives
from tests.project import WAYS, Project
from tests.robustness.processes import Background
from tests.waits import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

Start = Callable[..., Background]

ANY = "def test_it(rollout): assert rollout.status == 'ok'\n"

AGENT = """
import asyncio, re, socket, time
from pathlib import Path

HERE = Path(__file__).parent

async def run(scenario, llm, tools):
    print("here is", scenario.id)
    await globals()[scenario.id.replace("-", "_")](scenario, llm)

async def shop_0(scenario, llm):
    await llm.chat(scenario.messages)
    while not (HERE / "end").exists():
        await asyncio.sleep(0.01)

async def shop_1(scenario, llm):
    {block}

async def shop_2(scenario, llm):
    await llm.chat(scenario.messages)
"""


def shop(project: Project, block: str, timeout: float, scenarios: int = 3) -> None:
    project.suite(scenarios=scenarios, agent={"kind": "./agent.py:run"}, timeout=timeout, thresholds={}, test=ANY)
    project.write("scenarios/shop/agent.py", AGENT.replace("{block}", block))


BLOCKS = [
    "time.sleep(3600)",
    "ours, its = socket.socketpair(); ours.recv(1)",
    "while True: pass",
    "await asyncio.gather(asyncio.to_thread(int), run_on())",
]
RUN_ON = "\nasync def run_on():\n    await asyncio.sleep(0)\n    time.sleep(3600)\n"


@WAYS
@pytest.mark.parametrize("block", BLOCKS, ids=["sleeps", "reads", "computes", "in-a-task"])
def test_a_blocking_agent(project: Project, block: str, way: tuple[str, ...]) -> None:
    """At its budget it is an agent_error with its line in the reason, once; the rollout in flight beside it is run again, at no retry."""
    if way and block != BLOCKS[0]:
        pytest.skip("tests only read what the pool has run")
    shop(project, block, timeout=4)
    project.write("scenarios/shop/agent.py", AGENT.replace("{block}", block) + RUN_ON)
    project.write("scenarios/shop/end", "")

    result = project.run(*way, "--agentbench-concurrency=3", "--agentbench-retries=0", "scenarios/shop")

    result.assert_outcomes(passed=2, failed=1)
    assert 1 == result.ret
    rollouts = {rollout.scenario: rollout for rollout in project.rollouts}
    line = "time.sleep(3600)" if "gather" in block else block
    number = 1 + (AGENT.replace("{block}", block) + RUN_ON).split("\n").index(f"    {line}")
    place = f"agent.py:{number}: {line}"
    assert ("agent_error", "ok", "ok") == tuple(rollouts[f"shop-{each}"].status for each in (1, 0, 2))
    assert rollouts["shop-1"].reason.startswith(f"the agent blocked the event loop until its 4 s were over: {place}; use `def`, ")
    assert ("here is shop-1\n", ()) == (rollouts["shop-1"].log, rollouts["shop-1"].earlier_attempts)
    assert 3 == len(project.rollouts)
    assert 1 == result.stdout.str().count(
        f"agentbench: shop[shop-1]: the agent blocks the event loop, and with it all rollouts: {place}; use"
    )


def test_a_block_that_ends(project: Project, start: Start) -> None:
    """The session says who blocks while nothing else can be said, and that it goes on: all rollouts are what they would have been."""
    shop(project, "while not (HERE / 'go').exists(): time.sleep(0.01)", timeout=600)
    background = start("--agentbench-concurrency=3", "scenarios/shop")
    wait_for(lambda: "shop[shop-1]: the agent blocks the event loop" in background.output, "the watchdog")
    assert "agent.py:17: while not (HERE / 'go').exists(): time.sleep(0.01)" in background.output

    project.write("scenarios/shop/go", "")
    wait_for(lambda: re.search(r"agentbench: the event loop runs again after \d+ s", background.output), "its end")
    project.write("scenarios/shop/end", "")

    assert 0 == background.ended(60)
    assert ["ok"] * 3 == [rollout.status for rollout in background.rollouts]
    assert [1] * 3 == [rollout.attempt for rollout in background.rollouts]


def test_a_scorer_that_blocks(project: Project) -> None:
    """Its score is missing, with its line; the rollout and its other scores are kept, and are not measured again."""
    asking = "def test_it(rollout):\n    assert rollout.score('tsq') == 1.0\n    rollout.score('slow')\n"
    project.suite(scenarios=1, scorers=["tsq", "./scorer.py:slow"], thresholds={}, timeout=3, test=asking)
    project.write(
        "scenarios/shop/scorer.py", "import time\n\nasync def slow(scenario, rollout):\n    print('scoring')\n    time.sleep(3600)\n"
    )

    result = project.run("scenarios/shop")

    result.assert_outcomes(errors=1)
    why = "the scorer 'slow' blocked the event loop until its 3 s were over: scorer.py:5: time.sleep(3600)"
    result.stdout.fnmatch_lines([f"*shop?shop-0?: no slow, the scorer failed: {why}*"])
    (rollout,) = project.rollouts
    assert ("ok", 1.0, ["find_item"], 2, "scoring\n") == (
        rollout.status,
        rollout.score("tsq"),
        rollout.tools,
        len(rollout.calls),
        rollout.log,
    )
    assert (1, ()) == (rollout.attempt, rollout.earlier_attempts)


def test_what_an_agent_leaves_behind(project: Project) -> None:
    """A callback that blocks after its rollout's end changes nothing of that one; the others run, in another pool."""
    shop(project, "asyncio.get_running_loop().call_later(0.2, time.sleep, 3600)", timeout=3)
    project.write("scenarios/shop/end", "")
    project.write(
        "scenarios/shop/agent.py",
        AGENT.replace("{block}", "later()")
        + "\ndef later():\n    loop = asyncio.get_running_loop()\n    loop.call_later(0.2, time.sleep, 3600)\n",
    )

    result = project.run("--agentbench-concurrency=1", "scenarios/shop")

    assert ["ok"] * 3 == [rollout.status for rollout in project.rollouts]
    assert 0 == result.ret


def test_a_piece_of_c_that_never_ends(project: Project) -> None:
    """It keeps the watchdog from looking too: the pool ends with its stacks in the log, and the rollout is found like one that crashes."""
    shop(project, 're.match("(a+)+$", "a" * 60 + "b")', timeout=2)
    project.write("scenarios/shop/end", "")

    result = project.run("--agentbench-concurrency=3", "scenarios/shop")

    assert 1 == result.ret
    assert {"shop-0": "ok", "shop-1": "agent_error", "shop-2": "ok"} == {rollout.scenario: rollout.status for rollout in project.rollouts}
    assert 'agent.py", line 17 in shop_1' in (project.directory / "backend" / "pool.log").read_text()


def test_ctrl_c_while_the_loop_is_blocked(project: Project, start: Start) -> None:
    """The session ends with its report, and no process is left."""
    shop(project, "(HERE / 'blocks').touch(); time.sleep(3600)", timeout=600)
    background = start("--agentbench-concurrency=3", "scenarios/shop")
    wait_for((project.root / "scenarios/shop/blocks").exists, "the block")
    pool = background.child("pytest_agentbench.rollouts.pool")

    os.kill(background.process.pid, signal.SIGINT)

    assert 2 == background.ended(60)
    assert not lives(pool)
    assert "Traceback" not in background.output
    assert " pytest --agentbench-resume=" in background.output
