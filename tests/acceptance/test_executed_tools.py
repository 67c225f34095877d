"""Sessions in which the suite's tools are executed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.runs.journal import read_journal
from tests.project import FIND_THEN_ANSWER, Project

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
    """Creates a suite of three scenarios whose model makes these calls, and whose shop has three of each item."""
    usual: dict[str, Any] = {"scorers": ["tsq", "state_equals"], "tools": {"kind": "python", "module": "./tools.py:Shop"}, "thresholds": {}}
    project.suite(**{**usual, **keys})
    entries = [{**project.entry(f"shop-{each}"), "state": {"left": 3}, "final_state": {"left": final}} for each in range(3)]
    project.write("scenarios/shop/data.json", json.dumps(entries))
    project.write("scenarios/shop/tools.py", TOOLS.replace('{**state, "pid": os.getpid()}', "state"))
    asked = [{"name": name, "arguments": {"item": "lamp", "count": count}} for name, count in calls]
    project.backend([{**FIND_THEN_ANSWER[0], "tool_calls": asked}, FIND_THEN_ANSWER[1]])


PASSES = "def test_it(rollout):\n    assert rollout.score('state_equals') == 1\n"


def test_calls_are_executed(project: Project) -> None:
    """Each rollout has its own state. Refusals reach the model and the record, tools have times, and the final state has a score."""
    shop(project, [("order_item", 2), ("order_item", 2), ("find_item", 1)], test=PASSES)

    project.run("scenarios/shop").assert_outcomes(passed=3)

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
    """An exception in a tool is an infra_error with its line, with and without isolation, even if the agent suppresses it."""
    project.write("scenarios/shop/agent.py", AGENT)
    shop(project, [("return_item", 1)], test=PASSES, isolation=isolation, agent={"kind": agent})

    result = project.run("scenarios/shop", "--agentbench-retries=0")

    result.assert_outcomes(errors=3)
    result.stdout.fnmatch_lines(["*shop-0*infra_error: tools: the tool 'return_item': KeyError: 'lamp' (tools.py:*)*"])
    assert ["infra_error"] * 3 == [rollout.status for rollout in project.rollouts]


@pytest.mark.slow
def test_tools_in_a_process_for_each_rollout(project: Project) -> None:
    """With isolation, tools and agent run in a process of their rollout, and the final state is in the record."""
    shop(project, [("order_item", 2)], test="def test_it(rollout): pass", isolation="process")
    project.write("scenarios/shop/tools.py", TOOLS)

    project.run("scenarios/shop").assert_outcomes(passed=3)

    states = [rollout.final_state or {} for rollout in project.rollouts]
    assert ([1, 1, 1], 3) == ([state["left"] for state in states], len({state["pid"] for state in states}))
    assert ["differences"] == [name for name in project.rollouts[0].scores["state_equals"].parts if name != "changes"]


@pytest.mark.slow
def test_tools_that_do_not_match(project: Project) -> None:
    """Tools that do not match the data or the agent are a collection error of their suite."""
    shop(project, [("order_item", 2)], test=PASSES)
    project.write("scenarios/shop/tools.py", TOOLS.replace("count: int = 1", "number: int = 1"))
    project.suite("other", tools={"kind": "pyton"})
    project.suite("program", agent={"kind": "command", "program": ["true"]}, tools={"kind": "python", "module": "./tools.py:Shop"})

    result = project.run("scenarios")

    result.assert_outcomes(errors=3)
    for sentence in (
        "shop/suite.yaml: tools: './tools.py:Shop': the tool 'find_item' takes (item, number=...), and in the data it takes (item, ",
        "other/suite.yaml: tools: no kind of tools 'pyton' (did you mean 'python'?); known: decision_only, mcp, python",
        "program/suite.yaml: tools: the agent 'command' calls none of the suite's tools; leave `tools` out",
    ):
        assert sentence in result.stdout.str().replace("\n", "")
    assert not (project.root / "reports").exists() or not project.rollouts


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["none", "process"])
@pytest.mark.parametrize("executed", [True, False])
def test_canned_answers(project: Project, isolation: str, executed: bool) -> None:
    """Canned answers replace single tools, executed or not. Injected errors occur at the same calls with and without isolation."""
    decided: dict[str, Any] = {} if executed else {"tools": {}, "scorers": ["tsq"]}
    answers = {"find_item": {"text": "plenty", "delay": "1ms"}, "order_item": {"error_rate": 0.5}}
    project.write("scenarios/shop/agent.py", AGENT)
    shop(
        project, [("find_item", 1), *[("order_item", 0)] * 8], test="def test_it(rollout): pass",
        isolation=isolation, answers=answers, agent={"kind": "./agent.py:run"}, **decided,
    )  # fmt: skip

    project.run("scenarios/shop").assert_outcomes(passed=3)

    failed = {each.scenario: [call.injected for call in each.tool_calls] for each in project.rollouts}
    assert [False, True, True, False, True, False, False, True, True] == failed["shop-0"]
    assert 3 == len({*map(tuple, failed.values())})
    assert [None if not executed else {"left": 3}] * 3 == [each.final_state for each in project.rollouts]


@pytest.mark.slow
def test_answers_that_cannot_be_given(project: Project) -> None:
    """Invalid canned answers are a collection error of their suite, even if only the suite's code defines the tools."""
    project.suite("misspelt", answers={"find_itm": {"text": "x"}})
    project.suite("often", answers={"find_item": {"error_rate": 1.5}})
    project.suite("late", answers={"find_item": {"delay": "soon"}})
    project.suite("nothing", answers={"find_item": {}})
    project.suite("program", agent={"kind": "command", "program": ["true"]}, answers={"find_item": {"text": "x"}})
    shop(project, [("order_item", 2)], answers={"find_itm": {"text": "x"}})
    entries = json.loads((project.root / "scenarios/shop/data.json").read_text())
    project.write("scenarios/shop/data.json", json.dumps([{**each, "available_tools": []} for each in entries]))

    result = project.run("scenarios")

    result.assert_outcomes(errors=6)
    for sentence in (
        "misspelt/suite.yaml: answers: no tool 'find_itm' (did you mean 'find_item'?); known: find_item, order_item, return_item",
        "often/suite.yaml: answers.find_item.error_rate: ",
        "late/suite.yaml: answers.find_item.delay: must be a time such as 200ms, 90s, 10m or 2h, or a number of seconds",
        "nothing/suite.yaml: answers.find_item: must have at least one of `text`, `delay` and `error_rate`",
        "program/suite.yaml: answers: the agent 'command' calls none of the suite's tools; leave `answers` out",
        "shop/suite.yaml: answers: no tool 'find_itm' (did you mean 'find_item'?); known: find_item, order_item, return_item",
    ):
        assert sentence in result.stdout.str().replace("\n", "")


@pytest.mark.slow
def test_states_are_scored_again(project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`agentbench rescore` compares the states in the journal with the data.

    No tool runs again, and rollouts without a state are reported.
    """
    shop(
        project,
        [("order_item", 2)],
        test="def test_it(rollout): pass",
        scorers=["tsq"],
        variants={"decided": {"tools": {"kind": "decision_only"}}},
    )
    project.run("scenarios/shop", "--agentbench-variants=default,decided").assert_outcomes(passed=6)
    project.write("scenarios/shop/tools.py", "raise SystemExit('nobody asked for tools')")
    monkeypatch.chdir(project.root)

    assert 0 == main(["rescore", "--scorer", "state_equals"])

    said = capsys.readouterr().out
    assert "shop state_equals: mean none, now 1.000; 3 of 3 rollouts changed" in said
    assert " state_equals: the scorer failed on 3 of them: ValueError: the tools have no state; set `tools` in suite.yaml" in said
    again = [*read_journal(project.directory.with_name(f"{project.directory.name}-rescored"))]
    assert {("default", 1.0), ("decided", None)} == {(each.variant, each.scores.get("state_equals")) for each in again}


DIES = """
import os

async def run(scenario, llm, tools):
    await tools.call("find_item", '{"item": "lamp"}', 1)
    os.abort()
"""


@pytest.mark.slow
def test_calls_of_an_attempt_whose_process_dies(project: Project) -> None:
    """An agent's calls are in the record even if its process was killed, also inside a self-evaluating agent."""
    project.write("scenarios/shop/agent.py", DIES)
    wrapped = {"kind": "self_evaluating", "wraps": {"kind": "./agent.py:run"}}
    shop(project, [("order_item", 1)], test="def test_it(rollout): pass", isolation="process", agent=wrapped)

    project.run("scenarios/shop")

    assert ["agent_error"] * 3 == [rollout.status for rollout in project.rollouts]
    assert [["find_item"]] * 3 == [[call.name for call in rollout.tool_calls] for rollout in project.rollouts]
