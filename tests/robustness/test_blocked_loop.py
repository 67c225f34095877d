"""If one line blocks the event loop that all rollouts share, it is named, only its own rollout fails, and the others continue."""

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
    """An agent that blocks the event loop is an agent_error at its time limit, with the line in the reason.

    Other rollouts in flight run again without a retry.
    """
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
    """While an agent blocks, the session names it. After the block ends, the session says so, and all rollouts end as usual."""
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
    """If a scorer blocks, its score is missing and the reason has the line. The rollout and its other scores are kept."""
    asking = "def test_it(rollout):\n    assert rollout.score('tsq') == 1.0\n    rollout.score('slow')\n"
    project.suite(scenarios=1, scorers=["tsq", "./scorer.py:slow"], thresholds={}, timeout=3, test=asking)
    project.write(
        "scenarios/shop/scorer.py", "import time\n\nasync def slow(scenario, rollout):\n    print('scoring')\n    time.sleep(3600)\n"
    )

    result = project.run("scenarios/shop")

    result.assert_outcomes(errors=1)
    why = "the scorer 'slow' blocked the event loop until its 3 s were over: scorer.py:5: time.sleep(3600)"
    result.stdout.fnmatch_lines([f"*shop?shop-0?: no score 'slow', because the scorer failed: {why}*"])
    (rollout,) = project.rollouts
    assert ("ok", 1.0, ["find_item"], 2, "scoring\n") == (
        rollout.status,
        rollout.score("tsq"),
        rollout.tools,
        len(rollout.calls),
        rollout.log,
    )
    assert (1, ()) == (rollout.attempt, rollout.earlier_attempts)


def test_a_callback_that_blocks_after_its_rollout(project: Project) -> None:
    """A callback that blocks after its rollout has ended does not change that rollout. The other rollouts run in another pool."""
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


def test_c_code_that_never_ends(project: Project) -> None:
    """C code blocks the watchdog as well. The pool ends with its stacks in the log, and the rollout is identified like one that crashes."""
    shop(project, 're.match("(a+)+$", "a" * 60 + "b")', timeout=2)
    project.write("scenarios/shop/end", "")

    result = project.run("--agentbench-concurrency=3", "scenarios/shop")

    assert 1 == result.ret
    assert {"shop-0": "ok", "shop-1": "agent_error", "shop-2": "ok"} == {rollout.scenario: rollout.status for rollout in project.rollouts}
    assert 'agent.py", line 17 in shop_1' in (project.directory / "backend" / "pool.log").read_text()


def test_ctrl_c_while_the_loop_is_blocked(project: Project, start: Start) -> None:
    """After Ctrl-C during a block, the session ends with its report, and no process is left."""
    shop(project, "(HERE / 'blocks').touch(); time.sleep(3600)", timeout=600)
    background = start("--agentbench-concurrency=3", "scenarios/shop")
    wait_for((project.root / "scenarios/shop/blocks").exists, "the block")
    pool = background.child("pytest_agentbench.rollouts.pool")

    os.kill(background.process.pid, signal.SIGINT)

    assert 2 == background.ended(60)
    assert not lives(pool)
    assert "Traceback" not in background.output
    assert " pytest --agentbench-resume=" in background.output
