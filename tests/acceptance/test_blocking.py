"""Agents and scorers that block do not delay other rollouts, and do not keep the session from ending."""

from __future__ import annotations

import pytest

from pytest_agentbench.lib.bounded import THREAD_LEFT
from pytest_agentbench.records import Rollout
from tests.project import WAYS, Project

#: Waits for a file without yielding to the event loop. Fails if the file is not written.
WAITING = """
import asyncio, time
from pathlib import Path

HERE = Path(__file__).parents[1]

def wait_for(name):
    for _ in range(3000):
        if (HERE / name).exists():
            return (HERE / name).read_text()
        time.sleep(0.01)
    raise RuntimeError(f"nobody wrote {name}")

async def wait_for_async(name):
    for _ in range(3000):
        if (HERE / name).exists():
            return (HERE / name).read_text()
        await asyncio.sleep(0.01)
    raise RuntimeError(f"nobody wrote {name}")
"""

#: Agents of three suites, each of which needs something that another one does.
MEETING = {
    "first": """
def run(client, llm):
    said = client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": "x"}])
    (HERE / "first.done").touch()
    wait_for("third.done")
    print("one")
    return said.choices[0].message.content
""",
    "second": """
class run:
    def run(self, scenario, llm, tools):
        wait_for("first.done")
        (HERE / "second.done").touch()
        print("two")
        return Answer("2")
""",
    "third": """
async def run():
    await wait_for_async("second.done")
    (HERE / "third.done").touch()
    print("three")
    return "3"
""",
}

ANY = "def test_it(rollout): pass\n"


def by_suite(project: Project) -> dict[str, Rollout]:
    return {rollout.suite: rollout for rollout in project.rollouts}


@WAYS
def test_a_blocking_agent_delays_no_other(project: Project, way: tuple[str, ...]) -> None:
    """Two blocking agents and an async one wait for each other, so all three have to run at the same time. Their output is kept apart."""
    for name, code in MEETING.items():
        project.suite(name, scenarios=1, agent={"kind": "./agent.py:run"}, test=ANY, thresholds={})
        project.write(f"scenarios/{name}/agent.py", f"from pytest_agentbench import Answer\n{WAITING}{code}")
    project.backend([{"text": "1"}])

    result = project.run(*way, "--agentbench-concurrency=3", "scenarios")

    result.assert_outcomes(passed=3)
    assert {"first": ("1", ["one"], 1), "second": ("2", ["two"], 0), "third": ("3", ["three"], 0)} == {
        name: (rollout.answer, [line for line in rollout.log.splitlines() if "HTTP Request" not in line], rollout.turns)
        for name, rollout in by_suite(project).items()
    }


@pytest.mark.slow
def test_a_blocking_agent_that_never_ends(project: Project) -> None:
    """A blocking agent ends as `limit` after its time budget, with its calls so far.

    Its thread cannot call the model any more, and the session ends.
    """
    project.suite("slow", scenarios=1, agent={"kind": "./agent.py:run"}, timeout=1, test=ANY, scorers=["tsq", "./scorer.py:ends"])
    project.write(
        "scenarios/slow/agent.py",
        WAITING
        + """
def run(llm, tools):
    tools.call("find_item", '{"item": "lamp"}', 1)
    wait_for("over")
    client = llm.openai_sync()
    try:
        client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": "still there?"}])
    except Exception as error:
        (HERE / "part").write_text(str(error.status_code))
        (HERE / "part").rename(HERE / "refused")  # it is read as soon as it is there
    client.close()
    while True:
        time.sleep(60)
""",
    )
    project.suite("other", scenarios=1, agent={"kind": "./agent.py:run"}, test=ANY, thresholds={})
    over = "def ends(scenario, rollout):\n    (HERE / 'over').touch()\n    return 1.0\n"
    project.write("scenarios/slow/scorer.py", WAITING + over)
    project.write("scenarios/other/agent.py", WAITING + "async def run():\n    return await wait_for_async('refused')\n")

    result = project.run("scenarios")

    result.assert_outcomes(passed=2)
    slow, other = by_suite(project)["slow"], by_suite(project)["other"]
    assert ("limit", f"time: the rollout took longer than 1 s{THREAD_LEFT}", ["find_item"]) == (slow.status, slow.reason, slow.tools)
    assert (1.0, "410") == (slow.score("tsq"), other.answer)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["def", pytest.param("async def", marks=pytest.mark.slow)])
def test_a_scorer_that_never_ends(project: Project, kind: str) -> None:
    """A scorer has as much time as its rollout. After that its score is missing, and the other scores remain."""
    asking = "def test_it(rollout): rollout.score('slow')\n"
    project.suite(scenarios=1, scorers=["./scorer.py:slow", "tsq"], thresholds={}, timeout=1, test=asking)
    body = "while True: time.sleep(60)" if kind == "def" else "await asyncio.Event().wait()"
    project.write("scenarios/shop/scorer.py", f"import asyncio, time\n{kind} slow(scenario, rollout):\n    {body}\n")

    result = project.run("scenarios/shop")

    result.assert_outcomes(errors=1)
    left = THREAD_LEFT if kind == "def" else ""
    result.stdout.fnmatch_lines([f"*shop?shop-0?: no score 'slow', because the scorer failed: the scorer took longer than 1 s{left}"])
    assert 1.0 == project.rollouts[0].score("tsq")


@pytest.mark.slow
def test_a_blocking_scorer_delays_no_rollout(project: Project) -> None:
    """While a suite's own scorer blocks, other rollouts run on."""
    project.suite("scored", scenarios=1, scorers=["./scorer.py:patient"], thresholds={}, test=ANY)
    project.write(
        "scenarios/scored/scorer.py",
        WAITING + "def patient(scenario, rollout):\n    (HERE / 'scoring').touch()\n    wait_for('done')\n    return 1.0\n",
    )
    project.suite("working", scenarios=1, agent={"kind": "./agent.py:run"}, thresholds={}, test=ANY)
    agent = "async def run(llm, scenario):\n    await wait_for_async('scoring')\n"
    agent += "    await llm.chat(scenario.messages)\n    (HERE / 'done').touch()\n"
    project.write("scenarios/working/agent.py", WAITING + agent)

    project.run("scenarios").assert_outcomes(passed=2)

    assert 1.0 == by_suite(project)["scored"].score("patient")
