"""Weaknesses of the NeMo Agent Toolkit's benchmark that our sessions do not have.

Tests of single parts are elsewhere: 1 with labels, 3 and 7 with judges, 4 to 6 with scorers, 8 with the text agent.
"""

from __future__ import annotations

import json

import pytest

from tests.project import Project

#: Each rollout calls the tool as often as its number says, and lets all others call in between.
COUNTING = """\
import asyncio, itertools
from pytest_agentbench import Answer

turns = itertools.count(1)

async def run(scenario, tools):
    mine = next(turns)
    for number in range(mine):
        await asyncio.sleep(0)
        await tools.call("find_item", '{"item": "lamp %d"}' % mine, number + 1)
    return Answer(f"{mine} calls")
"""


def test_the_source_of_labels_is_reported(project: Project) -> None:
    """Weakness 2: labels made from keywords are wrong in both directions. Here run, report and terminal name the source of labels."""
    entry = {**project.entry("shop-0"), "metadata": {"label_source": "heuristic-v1"}}
    project.suite(scenarios=1)
    project.write("scenarios/shop/data.json", json.dumps([entry]))

    result = project.run("scenarios/shop")

    assert "heuristic-v1" == project.run_json["suites"]["shop"]["dataset"]["label_source"]
    assert "heuristic-v1" in result.stdout.str()
    assert "heuristic-v1" in (project.directory / "report.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_rollouts_do_not_see_each_other(project: Project) -> None:
    """Weakness 9: one registry for all scenarios mixes them up.

    Here each of many concurrent rollouts of the same question has only its own calls.
    """
    project.suite(scenarios=6, agent={"kind": "./agent.py:run"}, test="def test_it(rollout): pass")
    project.write("scenarios/shop/agent.py", COUNTING)

    project.run("scenarios/shop", "--agentbench-trials=3", "--agentbench-concurrency=18").assert_outcomes(passed=18)

    made = [[call.arguments["item"] for call in rollout.tool_calls] for rollout in project.rollouts]
    assert [[f"lamp {number}"] * number for number in range(1, 19)] == sorted(made, key=len)
    assert [f"{len(rollout.tool_calls)} calls" for rollout in project.rollouts] == [rollout.answer for rollout in project.rollouts]


@pytest.mark.slow
def test_unknown_keys_are_errors(project: Project) -> None:
    """Weakness 13: in the toolkit, `recursion_limit: 50` of an agent and `verbose` of a scorer are ignored. Here they are errors."""
    project.suite("agent", agent={"kind": "react", "recursion_limit": 50})
    project.suite("scorer", scorers=[{"tsq": {"verbose": True}}])

    result = project.run("scenarios")

    result.stdout.fnmatch_lines(["*agent: unknown key 'recursion_limit'; known keys of react: *max_tool_calls*"])
    result.stdout.fnmatch_lines(["*scorer 'tsq': no option 'verbose'; known: none*"])
