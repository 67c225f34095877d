"""Whole sessions in which tools are carried out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.project import FIND_THEN_ANSWER, WAYS, Project

TOOLS = """
import os
import threading
from pytest_agentbench import ToolError

class Shop:
    def __init__(self, state):
        self.state = {**state, "pid": os.getpid()}

    def find_item(self, item: str, count: int = 1):
        "Finds an item."
        return {"left": self.state["left"]}

    async def order_item(self, item: str, count: int = 1):
        "Orders an item."
        if count > self.state["left"]:
            raise ToolError(f"only {self.state['left']} left")
        self.state["left"] -= count

    def return_item(self, item: str, count: int = 1):
        "Takes an item back."
        raise KeyError(item)
"""

AGENT = """
import os
from pytest_agentbench import Answer

async def run(scenario, llm, tools):
    reply = await llm.chat(scenario.messages, tools.schemas)
    for call in reply.tool_calls:
        try:
            await tools.call(call.name, call.arguments, 1)
        except Exception:
            pass
    return Answer(str(os.getpid()))
"""


def shop(project: Project, calls: list[tuple[str, int]], final: int = 1, **keys: Any) -> None:
    """A suite of three scenarios whose model makes these calls, and whose shop has three of everything."""
    project.suite(scorers=["tsq", "state_equals"], tools={"kind": "python", "module": "./tools.py:Shop"}, thresholds={}, **keys)
    entries = [{**project.entry(f"shop-{each}"), "state": {"left": 3}, "final_state": {"left": final}} for each in range(3)]
    project.write("scenarios/shop/data.json", json.dumps(entries))
    project.write("scenarios/shop/tools.py", TOOLS.replace('{**state, "pid": os.getpid()}', "state"))
    asked = [{"name": name, "arguments": {"item": "lamp", "count": count}} for name, count in calls]
    project.backend([{**FIND_THEN_ANSWER[0], "tool_calls": asked}, FIND_THEN_ANSWER[1]])


PASSES = "def test_it(rollout):\n    assert rollout.score('state_equals') == 1\n"


@WAYS
def test_calls_are_carried_out(project: Project, way: tuple[str, ...]) -> None:
    """A state for each rollout, refusals told and recorded, time in tools, and a score of the final state."""
    shop(project, [("order_item", 2), ("order_item", 2), ("find_item", 1)], test=PASSES)

    project.run("scenarios/shop", *way).assert_outcomes(passed=3)

    for rollout in project.rollouts:
        assert ({"left": 1}, 1.0) == (rollout.final_state, rollout.scores["state_equals"])
        assert ["", "only 1 left", ""] == [call.refusal for call in rollout.tool_calls]
        told = [message["content"] for message in rollout.messages if message["role"] == "tool"]
        assert ["order_item is done.", "Error: only 1 left", '{"left":1}'] == told
        assert [True] * 3 == [(call.started_ns or 0) < (call.ended_ns or 0) for call in rollout.tool_calls]


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["none", "process"])
@pytest.mark.parametrize("agent", ["tool_calling", "./agent.py:run"])
def test_a_fault_of_the_suites_tools(project: Project, isolation: str, agent: str) -> None:
    """It is an ERROR with the line, in the pool's process and in one of the rollout's own, also where the agent keeps it for itself."""
    project.write("scenarios/shop/agent.py", AGENT)
    shop(project, [("return_item", 1)], test=PASSES, isolation=isolation, agent={"kind": agent})

    result = project.run("scenarios/shop", "--agentbench-retries=0")

    result.assert_outcomes(errors=3)
    result.stdout.fnmatch_lines(["*shop-0*infra_error: tools: the tool 'return_item': KeyError: 'lamp' (tools.py:*)*"])
    assert ["infra_error"] * 3 == [rollout.status for rollout in project.rollouts]


@pytest.mark.slow
def test_tools_in_a_process_for_each_rollout(project: Project) -> None:
    """With isolation the tools, and the agent with them, run in a process of their rollout; what became of the state comes back."""
    shop(project, [("order_item", 2)], test="def test_it(rollout): pass", isolation="process")
    project.write("scenarios/shop/tools.py", TOOLS)

    project.run("scenarios/shop").assert_outcomes(passed=3)

    states = [rollout.final_state or {} for rollout in project.rollouts]
    assert ([1, 1, 1], 3) == ([state["left"] for state in states], len({state["pid"] for state in states}))
    assert ["differences"] == [name for name in project.rollouts[0].scores["state_equals"].parts if name != "changes"]


@pytest.mark.slow
def test_tools_that_do_not_fit(project: Project) -> None:
    """They are a collection error of their suite before anything boots, from whatever process finds it."""
    shop(project, [("order_item", 2)], test=PASSES)
    project.write("scenarios/shop/tools.py", TOOLS.replace("count: int = 1", "number: int = 1"))
    project.suite("other", tools={"kind": "pyton"})
    project.suite("program", agent={"kind": "command", "program": ["true"]}, tools={"kind": "python", "module": "./tools.py:Shop"})

    result = project.run("scenarios")

    result.assert_outcomes(errors=3)
    for sentence in (
        "shop/suite.yaml: tools: './tools.py:Shop': the tool 'find_item' takes (item, number=...), and in the data it takes (item, ",
        "other/suite.yaml: tools: no kind of tools 'pyton'; known: decision_only, mcp, python",
        "program/suite.yaml: tools: the agent 'command' calls none of the suite's tools, so there is nothing to carry out",
    ):
        assert sentence in result.stdout.str().replace("\n", "")
    assert not (project.root / "reports").exists() or not project.rollouts
