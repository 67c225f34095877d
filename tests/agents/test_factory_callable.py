"""Functions as agents: their arguments, options and return values."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.agents.factory import UPGRADE, all_options, brings_code, make_agent
from pytest_agentbench.agents.run import work
from pytest_agentbench.errors import AgentError, ConfigError
from pytest_agentbench.llm.client import LLM
from pytest_agentbench.records import SAMPLING, Answer, Json
from pytest_agentbench.suites.suite import Scenario, Tool
from pytest_agentbench.tools.toolbox import Toolbox

SCENARIO = Scenario("s-0", ({"role": "user", "content": "A lamp?"},), (Tool("find", "", {"type": "object"}),))

CODE = """
import threading
from pytest_agentbench import Answer

seen = []

async def everything(client, tools, llm, scenario):
    seen.append((client, tools, llm, scenario, threading.current_thread()))

def blocking(llm, client):
    seen.append((client, llm, threading.current_thread()))
    return "from a thread"

def nothing():
    return Answer("at all")

class Blocking:
    def run(self, scenario, llm, tools):
        seen.append(threading.current_thread())
        return Answer(tools.call("find", "{}", 1))

class Called:
    async def __call__(self, scenario):
        return scenario.id

called = Called()

def later(scenario):
    async def answer():
        return f"{scenario.id}, later"
    return answer()

def number():
    return 5

def options(scenario, *, size, colour="red", client_name="mine"):
    return f"{size} {colour} {client_name}"

def wrong(scenario, model): ...
def many(*scenarios): ...
def named(**options): ...
def first(scenario, /): ...
"""

INIT = """
class Shopkeeper:
    def __init__(self, shop="corner", temperature: float = 0.0, *, max_turns: int = 6, plan: "str | None" = None, **rest):
        self.temperature, self.max_turns = temperature, max_turns

    async def run(self, scenario, llm, tools):
        return str(self.temperature)

class Demanding(Shopkeeper):
    def __init__(self, max_turns: int):
        pass
"""

GENERAL = ", ".join((*SAMPLING, UPGRADE))
KNOWN = "known: scenario, tools, llm, client; write options of the agent after a `*`, so that they are keyword-only"


@pytest.fixture
def folder(forgotten_modules: Path) -> Path:
    """A suite's folder with its own code."""
    (forgotten_modules / "code.py").write_text(CODE)
    (forgotten_modules / "init.py").write_text(INIT)
    return forgotten_modules


async def ran(folder: Path, name: str, **options: Any) -> tuple[str, LLM, Toolbox, list[Any]]:
    """Runs an agent from the suite's code. Returns its answer, its arguments and its notes."""
    llm, tools = LLM("http://127.0.0.1:9/r/1/v1", "served"), Toolbox(SCENARIO.tools)
    answer = await work(make_agent({"kind": f"./code.py:{name}", **options}, folder), SCENARIO, llm, tools)
    (module,) = [module for name, module in sys.modules.items() if name.startswith("agentbench_code")]
    return answer.text, llm, tools, module.seen


async def test_parameters_of_an_async_function(folder: Path) -> None:
    """A function gets scenario, tools, LLM and an async openai client of the tap, in any order.

    A returned None means an answer without text.
    """
    text, llm, tools, [(client, given_tools, given_llm, scenario, thread)] = await ran(folder, "everything")

    assert ("", tools, llm, SCENARIO) == (text, given_tools, given_llm, scenario)
    assert ("AsyncOpenAI", "http://127.0.0.1:9/r/1/v1/", 0) == (type(client).__name__, str(client.base_url), client.max_retries)
    assert "MainThread" == thread.name
    assert client.is_closed()


async def test_a_blocking_function_gets_a_thread_and_a_blocking_client(folder: Path) -> None:
    """A plain `def` runs in a thread and gets the blocking client."""
    text, _, _, [(client, _, thread)] = await ran(folder, "blocking")

    assert ("from a thread", "OpenAI", "agentbench-blocking") == (text, type(client).__name__, thread.name)
    assert client.is_closed()


@pytest.mark.parametrize(
    ("name", "text"), [("nothing", "at all"), ("Blocking", "find is done."), ("called", "s-0"), ("later", "s-0, later")]
)
async def test_other_callables(folder: Path, name: str, text: str) -> None:
    """Functions without parameters, classes with a plain `def run`, callable objects and functions that return awaitables are agents."""
    assert text == (await ran(folder, name))[0]


async def test_an_invalid_answer(folder: Path) -> None:
    """A return value other than an Answer, a text or None is an agent error."""
    with pytest.raises(AgentError, match=r"^the agent returned '5' \(int\), not an Answer, a text or None \(code\.py:33\)$"):
        await ran(folder, "number")


async def test_options(folder: Path) -> None:
    """Keyword-only parameters are options. Their defaults are recorded."""
    settings: Json = {"kind": "./code.py:options", "size": 3, "colour": "blue", "temperature": 0.5}
    agent = make_agent(settings, folder)

    assert Answer("3 blue mine") == await work(agent, SCENARIO, LLM("", ""), Toolbox(()))
    assert {**settings, "client_name": "mine"} == all_options(settings, agent)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"kind": "./code.py:options"}, "agent './code.py:options': the option 'size' is missing"),
        (
            {"kind": "./code.py:options", "sise": 3},
            (
                f"agent: unknown key 'sise' (did you mean 'size'?); "
                f"known keys of ./code.py:options: kind, {GENERAL}, size, colour, client_name"
            ),
        ),
        *(
            (
                {"kind": f"./code.py:{name}"},
                f"agent: './code.py:{name}' has an unknown parameter: {parameter}; {KNOWN}",
            )
            for name, parameter in [("wrong", "model"), ("many", "*scenarios"), ("named", "**options"), ("first", "scenario")]
        ),
    ],
)
def test_wrong_parameters_and_options(folder: Path, settings: Json, sentence: str) -> None:
    """An unknown parameter is an error before the function runs, with the known parameters."""
    with pytest.raises(ConfigError) as caught:
        make_agent(settings, folder)

    assert sentence == re.sub(r" \(code\.py:\d+\)$", "", str(caught.value))


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("Shopkeeper", {"max_turns": 3}, "'./init.py:Shopkeeper' does not declare the option 'max_turns'; {}max_turns: int = 6{}"),
        ("Shopkeeper", {"shop": "x"}, "'./init.py:Shopkeeper' does not declare the option 'shop'; {}shop: str = 'corner'{}"),
        ("Shopkeeper", {"plan": "x"}, "'./init.py:Shopkeeper' does not declare the option 'plan'; {}plan: str | None = None{}"),
        (
            "Shopkeeper",
            {"temperature": 0.7},
            (
                "'./init.py:Shopkeeper' never gets 'temperature' of suite.yaml, because its __init__ is not read; "
                "leave the parameter out and send `**llm.sampling` with each request, or {}temperature: float = 0.0{}"
            ),
        ),
        (
            "Demanding",
            {},
            (
                "'./init.py:Demanding' cannot be made from its settings: Demanding.__init__() missing 1 required positional argument: "
                "'max_turns'; {}max_turns: int{}"
            ),
        ),
    ],
)
def test_options_in_an_init(folder: Path, name: str, settings: Json, sentence: str) -> None:
    """A setting that only the `__init__` of a class names is an error with the line that declares it, also if it is a sampling parameter,
    because the class would keep its default while the record had the value of suite.yaml.
    """
    with pytest.raises(ConfigError) as caught:
        make_agent({"kind": f"./init.py:{name}", **settings}, folder)

    declared = f"declare it as a field of a dataclass: `@dataclass` above `class {name}`, and `", "` instead of the __init__ (init.py:N)"
    assert f"agent: {sentence.format(*declared)}" == re.sub(r":\d+\)$", ":N)", str(caught.value))


async def test_an_init_without_settings(folder: Path) -> None:
    """A class with an `__init__` works as long as suite.yaml sets none of its parameters."""
    agent = make_agent({"kind": "./init.py:Shopkeeper", "top_p": 0.5}, folder)

    assert "0.0" == await agent.run(SCENARIO, LLM("", ""), Toolbox(()))  # type: ignore[comparison-overlap]  # the answer is a text


def test_import_paths_are_code_of_the_suite(tmp_path: Path) -> None:
    """An import path means the suite's own code, a built-in kind does not. Nothing is imported to decide that."""
    assert (True, False) == tuple(brings_code({"kind": kind}, tmp_path) for kind in ("./gone.py:run", "tool_calling"))
