"""A debugger needs a terminal: it is refused where there is none, and opens in the user's own frame where there is one."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_agentbench.records import Rollout
from tests.acceptance.test_inline import debug
from tests.project import FIND_THEN_ANSWER, TEST_FILE, Project

#: Each function waits for input in its own way, in the line that its docstring names.
WAITING = '''
import pdb
from pathlib import Path

async def stops(scenario, llm, tools):
    breakpoint()
    return "never"

def traces(scenario):
    pdb.set_trace()
    return "never"

def asks(scenario):
    return input("What should I do? ")

def reads(scenario):
    import sys
    return sys.stdin.buffer.read().decode()

async def orders(scenario, llm, tools):
    reply = await llm.chat([*scenario.messages], tools.schemas)
    try:
        for call in reply.tool_calls:
            await tools.call(call.name, call.arguments, 1)
    except Exception:
        pass
    return "done"

def score(scenario, rollout):
    breakpoint()
    return 1.0

class Shop:
    def find_item(self, item: str, count: int = 0) -> str:
        """Finds an item."""
        breakpoint()
        return "a lamp"

    def order_item(self, item: str, count: int = 0) -> str:
        """Orders an item."""
        return "ordered"

    def return_item(self, item: str, count: int = 0) -> str:
        """Takes an item back."""
        return "taken back"
'''

ADVICE = "--agentbench-inline (which --pdb implies) runs agents, tools and scorers in pytest's own process"

#: Maps the name of a suite to its keys, and the refusal with its line.
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "stops": ({"agent": {"kind": "./agent.py:stops"}}, "breakpoint() needs a terminal", "agent.py:6"),
    "traces": ({"agent": {"kind": "./agent.py:traces"}}, "pdb.set_trace() needs a terminal", "agent.py:10"),
    "asks": ({"agent": {"kind": "./agent.py:asks"}}, "input() or another read of stdin needs a terminal", "agent.py:14"),
    "reads": ({"agent": {"kind": "./agent.py:reads"}}, "a read of stdin needs a terminal", "agent.py:18"),
    "tool": (
        {"agent": {"kind": "./agent.py:orders"}, "tools": {"kind": "python", "module": "./agent.py:Shop"}},
        "breakpoint() needs a terminal",
        "agent.py:36",
    ),
    "alone": ({"agent": {"kind": "./agent.py:stops"}, "isolation": "process"}, "breakpoint() needs a terminal", "agent.py:6"),
    "scorer": (
        {"scorers": ["./agent.py:score"], "thresholds": {"score": 0.5}, "test": TEST_FILE.replace("tsq", "score")},
        "breakpoint() needs a terminal",
        "agent.py:30",
    ),
    "scorer_alone": (
        {"scorers": ["./agent.py:score"], "thresholds": {"score": 0.5}, "test": TEST_FILE.replace("tsq", "score"), "isolation": "process"},
        "breakpoint() needs a terminal",
        "agent.py:30",
    ),
}

SCORERS = ("scorer", "scorer_alone")


def reason_of(rollout: Rollout) -> str:
    return rollout.reason or rollout.score_errors.get("score", "")


def test_a_debugger_is_refused_in_the_pool(project: Project) -> None:
    """breakpoint(), pdb.set_trace() and input() in an agent, a tool or a scorer of the pool are refused at once, with the line.

    The rollout is an agent_error that is not repeated. If a scorer does it, the score is missing.
    """
    for name, (keys, _, _) in REFUSED.items():
        project.suite(name, scenarios=1, **keys)
        project.write(f"scenarios/{name}/agent.py", WAITING)

    result = project.run("scenarios", "--agentbench-budget-rollout=60")

    result.assert_outcomes(failed=len(REFUSED) - len(SCORERS), errors=len(SCORERS))
    rollouts = {rollout.suite: rollout for rollout in project.rollouts}
    for name, (_, what, place) in REFUSED.items():
        assert f"{'NoTerminal: ' * (name in SCORERS)}{what}, and this process has none; {ADVICE} ({place})" == reason_of(rollouts[name])
        assert ("ok" if name in SCORERS else "agent_error", 1) == (rollouts[name].status, rollouts[name].attempt)
    assert ADVICE in result.stdout.str()


@pytest.mark.slow
@pytest.mark.parametrize(("named", "answer"), [("0", "went on"), ("shop_debugger.start", "my own debugger"), ("pdb.set_trace", "")])
def test_a_debugger_of_ones_own_is_not_refused(project: Project, named: str, answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PYTHONBREAKPOINT keeps its meaning: 0 switches breakpoint() off, and a debugger of another name may have a terminal of its own."""
    monkeypatch.setenv("PYTHONBREAKPOINT", named)
    monkeypatch.setenv("PYTHONPATH", str(project.root))
    project.suite(scenarios=1, agent={"kind": "./agent.py:run"}, test="def test_it(rollout): pass")
    project.write("scenarios/shop/agent.py", "def run():\n    return breakpoint() or 'went on'\n")
    project.write("shop_debugger.py", "def start():\n    return 'my own debugger'\n")

    project.run("scenarios/shop")

    (rollout,) = project.rollouts
    assert ("ok" if answer else "agent_error", answer) == (rollout.status, rollout.answer)


@pytest.mark.slow
def test_a_breakpoint_at_import_is_a_collection_error(project: Project) -> None:
    """A breakpoint() outside of functions cannot open a debugger anywhere, because the code is imported in several processes."""
    project.suite(scenarios=1, agent={"kind": "./agent.py:run"})
    project.write("scenarios/shop/agent.py", "x = 1\nbreakpoint()\ndef run():\n    return 'never'\n")

    result = project.run("scenarios/shop")

    assert 4 == result.ret
    sentence = "NoTerminal: breakpoint() needs a terminal, and this process has none; move it into a function, because importing the code"
    assert f"agent './agent.py:run' cannot be loaded: {sentence} must only define things (agent.py:2)" in result.stdout.str()


#: Each function raises in its own way, after it has set `mine`.
RAISING = '''
import json

async def raises(scenario, llm, tools):
    mine = "of the agent"
    return json.loads("{")

def blocks(scenario, llm, tools):
    mine = "of the agent"
    return scenario.question

async def asks(scenario, llm, tools):
    mine = "of the agent"
    await llm.chat([*scenario.messages, {"role": "user", "content": "break"}])

async def stops(scenario, llm, tools):
    breakpoint()
    return "done"

def score(scenario, rollout):
    mine = "of the scorer"
    return rollout.answers

class Shop:
    def find_item(self, item: str, count: int = 0) -> str:
        """Finds an item."""
        mine = "of the tool"
        return 1 / 0

    def order_item(self, item: str, count: int = 0) -> str:
        """Orders an item."""

    def return_item(self, item: str, count: int = 0) -> str:
        """Takes an item back."""
'''

#: Maps the name of the code to the keys of its suite, and the function in whose line the debugger opens.
OPENED: dict[str, tuple[dict[str, Any], str, str]] = {
    "raises": ({"agent": {"kind": "./agent.py:raises"}}, "raises()", "of the agent"),
    "blocks": ({"agent": {"kind": "./agent.py:blocks"}}, "blocks()", "of the agent"),
    "asks": ({"agent": {"kind": "./agent.py:asks"}}, "asks()", "of the agent"),
    "tool": ({"tools": {"kind": "python", "module": "./agent.py:Shop"}}, "find_item()", "of the tool"),
    "scorer": (
        {"scorers": ["tsq", "./agent.py:score"], "thresholds": {}, "test": "def test_it(rollout):\n    rollout.score('score')\n"},
        "score()",
        "of the scorer",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("code", OPENED)
def test_the_debugger_opens_where_the_users_code_raised(project: Project, code: str) -> None:
    """--pdb opens in the line of the agent, tool or scorer that raised, not in the line of the test or of this package.

    If a package raised, that is the line which called it, and `down` leads to the package.
    """
    keys, function, mine = OPENED[code]
    project.backend([{"match": {"contains": "break"}, "status": 500, "message": "boom"}, *FIND_THEN_ANSWER])
    project.suite(scenarios=1, **keys)
    project.write("scenarios/shop/agent.py", RAISING)

    out = debug(project, "p 'mine is ' + mine\ndown\nc\n").stdout

    opened = out.partition("PDB post_mortem")[2].splitlines()
    assert opened[1].startswith("> ") and opened[1].endswith(function)
    assert f"mine is {mine}" in out
    assert "KeyError: RolloutKey" not in out
    assert ("Newest frame" in out) is (code not in ("raises", "asks"))


@pytest.mark.slow
def test_quitting_the_debugger_in_an_agent_ends_the_session(project: Project) -> None:
    """The command `q` ends the session at once. The rollout is not recorded, so the session can be resumed."""
    project.suite(scenarios=2, agent={"kind": "./agent.py:stops"})
    project.write("scenarios/shop/agent.py", RAISING)

    done = debug(project, "q\n")

    assert "Exit: Quitting debugger" in done.stdout
    assert (2, []) == (done.returncode, project.rollouts)
    assert {"rollouts": 2, "finished": 0, "not_run": 2} == project.run_json["plan"]
    assert "Traceback" not in done.stderr
