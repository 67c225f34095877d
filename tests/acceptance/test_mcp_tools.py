"""Sessions whose tools are provided by an MCP server."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.project import FIND_THEN_ANSWER, Project

pytestmark = pytest.mark.slow

CANARY = "canary-4711-canary-4711"
SECRET = "shop-0815-shop-0815"

SERVER = '''
import os
import sys
import time
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("shop", log_level="ERROR")
stock = {"lamp": 3}

@server.tool()
def find_item(item: str, count: int = 1) -> str:
    """Finds an item in the shop."""
    return " ".join(sorted(os.environ))

@server.tool()
def order_item(item: str, count: int = 1) -> str:
    """Orders an item."""
    if stock[item] < count:
        raise ToolError(f"only {stock[item]} left")
    stock[item] -= count
    print("ordered for", os.environ.get("SHOP_API_KEY"), file=sys.stderr, flush=True)
    return f"{stock[item]} left"

@server.tool()
def return_item(item: str, count: int = 1) -> str:
    """Takes an item back."""
    print("no room", file=sys.stderr, flush=True)
    os._exit(7)

server.run()
'''

AGENT = """
from pytest_agentbench import Answer

async def run(scenario, llm, tools):
    reply = await llm.chat(scenario.messages, tools.schemas)
    for call in reply.tool_calls:
        try:
            await tools.call(call.name, call.arguments, 1)
        except Exception:
            pass
    return Answer("done")
"""


def shop(project: Project, calls: list[tuple[str, int]], server: str = SERVER, **keys: Any) -> None:
    """Creates a suite of three scenarios whose model makes these calls of a server's tools."""
    tools = {"kind": "mcp", "command": ["python", "server.py"], "env": {"LC_ALL": "C.UTF-8"}, "keys": ["SHOP_API_KEY"]}
    project.suite(tools=tools, thresholds={}, **keys)
    project.write("scenarios/shop/server.py", server)
    asked = [{"name": name, "arguments": {"item": "lamp", "count": count}} for name, count in calls]
    project.backend([{**FIND_THEN_ANSWER[0], "tool_calls": asked}, FIND_THEN_ANSWER[1]])


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets two secrets in the environment of the session, one of which the server gets."""
    monkeypatch.setenv("CANARY_API_KEY", CANARY)
    monkeypatch.setenv("SHOP_API_KEY", SECRET)


REWARD = """
def test_it(rollout):
    told = [message["content"] for message in rollout.messages if message["role"] == "tool"]
    assert told[:1] == ["1 left"]
    assert "only 1 left" in told[1]
    assert told[2:] == ["LC_ALL SHOP_API_KEY"]
"""


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_calls_are_executed(project: Project, isolation: str) -> None:
    """Each rollout has a server process with its own state, which gets only the named variables.

    Its log is in the record, without secrets.
    """
    project.write("scenarios/shop/agent.py", AGENT)
    shop(project, [("order_item", 2), ("order_item", 2), ("find_item", 1)], test=REWARD, isolation=isolation)

    project.run("scenarios/shop").assert_outcomes(passed=3)

    for rollout in project.rollouts:
        assert ["order_item", "order_item", "find_item"] == [call.name for call in rollout.tool_calls]
        assert [False, True, False] == [bool(call.refusal) for call in rollout.tool_calls]
        assert [True] * 3 == [(call.started_ns or 0) < (call.ended_ns or 0) for call in rollout.tool_calls]
        assert "ordered for [redacted]" in rollout.log
    written = "".join(file.read_text(errors="replace") for file in project.directory.rglob("*") if file.is_file())
    assert [False, False] == [secret in written for secret in (CANARY, SECRET)]


@pytest.mark.parametrize("agent", ["tool_calling", "./agent.py:run"])
def test_a_server_that_dies(project: Project, agent: str) -> None:
    """If the server dies, the rollout is an infra_error with the server's last lines and no score, even if the agent suppresses the
    exception.
    """
    project.write("scenarios/shop/agent.py", AGENT)
    shop(project, [("return_item", 1)], test="def test_it(rollout):\n    assert rollout.score('tsq') >= 0\n", agent={"kind": agent})

    result = project.run("scenarios/shop", "--agentbench-retries=0")

    result.assert_outcomes(errors=3)
    ended = "tools: the MCP server `python server.py` ended with exit code 7; its last lines: no room"
    result.stdout.fnmatch_lines([f"*shop-0*infra_error: {ended}*"])
    assert [("infra_error", {})] * 3 == [(rollout.status, rollout.scores) for rollout in project.rollouts]


def test_a_server_that_does_not_match(project: Project) -> None:
    """A server whose tools differ from the data is a collection error of its suite, and nothing starts."""
    shop(project, [], SERVER.replace("def return_item", "def give_back"))

    result = project.run("scenarios/shop")

    result.assert_outcomes(errors=1)
    said = re.sub(r"\s", "", result.stdout.str())
    assert (
        "shop/suite.yaml:tools:theMCPserver`pythonserver.py`:thedatalistatoolthatdoesnotexist:"
        "notool'return_item'(didyoumean'order_item'?);known:find_item,give_back,order_item" in said
    )
    assert not (project.root / "reports").exists()


def test_without_the_extra_mcp(project: Project) -> None:
    """If the package mcp is missing, a sentence says how to install it."""
    shop(project, [])
    # This file is found before the real package.
    project.write("mcp.py", "raise ImportError('none')\n")

    result = project.run("scenarios/shop")

    result.assert_outcomes(errors=1)
    assert "tools:kindmcpneedsthepackagemcp:pipinstall'pytest-agentbench[mcp]'" in re.sub(r"\s", "", result.stdout.str())
