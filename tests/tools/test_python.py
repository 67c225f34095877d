"""A class of a suite whose documented methods are tools."""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.errors import ConfigError, InfraError
from pytest_agentbench.lib.bounded import THREAD_LEFT
from pytest_agentbench.records import Json
from pytest_agentbench.suites.suite import Scenario, Tool
from pytest_agentbench.tools.factory import load_tools
from pytest_agentbench.tools.toolbox import Toolbox

CODE = '''
from __future__ import annotations
import asyncio
import threading
from datetime import date
from typing import Annotated, Literal
from pydantic import AfterValidator, Field
from pytest_agentbench import ToolError

def lamp(item: str) -> str:
    if item != "lamp":
        raise ValueError("there are only lamps")
    return item

class Shop:
    """Sells things."""

    def __init__(self, state):
        self.state = state
        self.thread = None

    def order(self, item: Annotated[str, Field(description="what")], count: int = 1) -> dict:
        """Orders an item."""
        left = self.state["stock"].get(item, 0)
        if left < count:
            raise ToolError(f"only {left} left")
        self.state["stock"][item] = left - count
        return {"left": left - count, "thread": threading.current_thread().name}

    async def wait(self, until: date, how: Literal["long", "short"] = "short") -> str:
        """Waits."""
        await asyncio.sleep(0)
        return f"{type(until).__name__} {how} {threading.current_thread().name}"

    def nothing(self) -> None:
        """Does nothing."""

    def breaks(self) -> None:
        """Has a fault."""
        self.state["gone"]["deeper"] = 1

    def odd(self) -> object:
        """Returns what no model could be told."""
        return object()

    def spoils(self) -> None:
        """Puts what nobody can write down into the state."""
        self.state["lock"] = threading.Lock()

    def name(self, item: Annotated[str, AfterValidator(lamp)]) -> str:
        """Names it."""
        return item

    @staticmethod
    def shout(text: str) -> str:
        """Needs no shop."""
        return text.upper()

    def undocumented(self): ...
    def _private(self):
        """Nobody's."""

class Plain:
    def tell(self, item):
        """Tells."""
        return item

class Bare: ...
class Asks:
    def __init__(self, colour): ...
    def tell(self):
        """Tells."""
class Unmade(Plain):
    def __init__(self):
        raise OSError("no disk")
class Many:
    def tell(self, *items):
        """Tells."""
class Odd:
    def tell(self, item: threading.Lock):
        """Tells."""
class Lost:
    def tell(self, item: Nowhere):
        """Tells."""
number = 5
'''

HELLO: Json = {"role": "user", "content": "Hello"}


@pytest.fixture
def folder(forgotten_modules: Path) -> Path:
    """A suite's folder with its own code."""
    (forgotten_modules / "shop.py").write_text(CODE)
    return forgotten_modules


def settings(name: str) -> Json:
    return {"kind": "python", "module": f"./shop.py:{name}"}


@asynccontextmanager
async def opened(folder: Path, name: str = "Shop", **state: Any) -> Any:
    """The toolbox of one rollout."""
    tools = load_tools(settings(name), folder, ())
    scenario = tools.for_scenario(Scenario("s-0", (HELLO,), state=state))
    async with tools.opened(scenario) as source:
        yield Toolbox(scenario.tools, source=source)


async def test_schemas_from_signatures(folder: Path) -> None:
    """Public methods with a docstring are tools.

    Their schemas have name, description, types, required parameters and descriptions of parameters.
    """
    async with opened(folder) as tools:
        schemas = {each["function"]["name"]: each["function"] for each in tools.schemas}

    assert ["breaks", "name", "nothing", "odd", "order", "shout", "spoils", "wait"] == [*schemas]
    assert "Orders an item." == schemas["order"]["description"]
    assert {
        "type": "object",
        "properties": {"item": {"type": "string", "description": "what"}, "count": {"type": "integer", "default": 1}},
        "required": ["item"],
        "additionalProperties": False,
    } == schemas["order"]["parameters"]
    assert (["text"], ["text"]) == ([*schemas["shout"]["parameters"]["properties"]], schemas["shout"]["parameters"]["required"])
    assert {"enum": ["long", "short"], "type": "string", "default": "short"} == schemas["wait"]["parameters"]["properties"]["how"]


async def test_a_state_for_each_rollout(folder: Path) -> None:
    """Each rollout begins with a copy of the scenario's state. Its changed copy is the final state."""
    tools = load_tools(settings("Shop"), folder, ())
    scenario = tools.for_scenario(Scenario("s-0", (HELLO,), state={"stock": {"lamp": 3}}))
    left = []
    for count in (1, 2):
        async with tools.opened(scenario) as source:
            toolbox = Toolbox(scenario.tools, source=source)
            await toolbox.call("order", f'{{"item": "lamp", "count": {count}}}', 1)
            toolbox.settle()
            left.append(toolbox.final_state)

    assert [{"stock": {"lamp": 2}}, {"stock": {"lamp": 1}}] == left
    assert {"stock": {"lamp": 3}} == scenario.state


async def test_where_methods_run(folder: Path) -> None:
    """A plain method runs in a thread, an async one in the loop. Arguments have the declared types, and results become text."""
    async with opened(folder, stock={"lamp": 1}) as tools:
        assert '{"left":0,"thread":"agentbench-blocking"}' == await tools.call("order", '{"item": "lamp"}', 1)
        assert "date short MainThread" == await tools.call("wait", '{"until": "2026-11-23"}', 1)
        assert "nothing is done." == await tools.call("nothing", "{}", 1)
        assert "LAMP" == await tools.call("shout", '{"text": "lamp"}', 1)


async def test_a_refusal(folder: Path) -> None:
    """ToolError and wrong types are reported to the model and recorded. The rollout continues."""
    async with opened(folder, stock={"lamp": 1}) as tools:
        assert "Error: only 1 left" == await tools.call("order", '{"item": "lamp", "count": 2}', 1)
        said = await tools.call("name", '{"item": "chair"}', 1)
        assert "Error: name cannot take these arguments: item: Value error, there are only lamps" == said
        tools.settle()

    assert [(None, True), (None, True)] == [(call.problem, bool(call.refusal)) for call in tools.calls]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("breaks", "tools: the tool 'breaks': KeyError: 'gone' (shop.py:"),
        ("odd", "tools: the tool 'odd': "),
        ("spoils", "tools: the state of Shop cannot be converted to JSON: "),
    ],
)
async def test_a_fault_of_the_suites_code(folder: Path, name: str, reason: str) -> None:
    """Any other error fails the rollout with its place, even if the agent catches it."""
    async with opened(folder) as tools:
        with suppress(InfraError):  # an agent may catch the error
            await tools.call(name, "{}", 1)
        with pytest.raises(InfraError) as caught:
            tools.settle()

    assert str(caught.value).startswith(reason)


async def test_a_class_that_cannot_be_made(folder: Path) -> None:
    """An error of the constructor fails the rollout, too."""
    with pytest.raises(InfraError, match=r"^tools: Unmade cannot be created: OSError: no disk \(shop.py:\d+\)$"):
        async with opened(folder, "Unmade"):
            pass


UNUSUAL = """
import time

class Late:
    def __init__(self):
        time.sleep(60)

    def find(self) -> str:
        "Finds."

class Leaving:
    async def leave(self) -> str:
        "Leaves."
        raise GeneratorExit

    def interrupt(self) -> str:
        "Interrupts."
        raise KeyboardInterrupt
"""


async def test_a_class_that_takes_too_long(folder: Path) -> None:
    """The time limit of a rollout includes the constructor, whose thread is left running."""
    (folder / "unusual.py").write_text(UNUSUAL)
    tools = load_tools({"kind": "python", "module": "./unusual.py:Late"}, folder, ())

    with pytest.raises(InfraError) as caught:
        async with tools.opened(Scenario("s-0", (HELLO,)), 0.01):
            pass

    assert f"tools: Late cannot be created: its constructor took longer than 0.01 s{THREAD_LEFT}" == str(caught.value)


@pytest.mark.parametrize(("name", "error"), [("leave", "GeneratorExit"), ("interrupt", "KeyboardInterrupt")])
async def test_errors_that_are_not_exceptions(folder: Path, name: str, error: str) -> None:
    """An error that is not an Exception counts like any other error of a tool."""
    (folder / "unusual.py").write_text(UNUSUAL)
    tools = load_tools({"kind": "python", "module": "./unusual.py:Leaving"}, folder, ())
    scenario = tools.for_scenario(Scenario("s-0", (HELLO,)))

    async with tools.opened(scenario) as source:
        with pytest.raises(InfraError, match=f"^tools: the tool {name!r}: {error}: "):
            await Toolbox(scenario.tools, source=source).call(name, "{}", 1)


async def test_further_drafts_begin_with_the_same_state(folder: Path) -> None:
    """The tools of an agent's next draft do not have the changes of the previous one."""
    async with opened(folder, stock={"lamp": 3}) as tools:
        first, second = tools.fresh(), tools.fresh()
        await first.call("order", '{"item": "lamp", "count": 2}', 1)
        await second.call("order", '{"item": "lamp"}', 1)

        assert [1, 2, 3] == [each.source.state()["stock"]["lamp"] for each in (first, second, tools)]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"kind": "magic"}, "tools: no kind of tools 'magic'; known: decision_only, mcp, python"),
        ({"kind": ["mcp"]}, r"tools: no kind of tools .*mcp.*; known: decision_only, mcp, python"),
        ({"kind": "python"}, "tools: .* missing 1 required positional argument: 'module'"),
        ({"kind": "python", "module": "shop"}, "tools: module must be the import path of a class, such as ./tools.py:Bank, not 'shop'"),
        ({"kind": "python", "modul": "x"}, "tools: unknown key 'modul' .did you mean 'module'..; known keys of python: kind, module"),
        (settings("Gone"), "tools: class of tools './shop.py:Gone' cannot be loaded: the module does not define 'Gone'; it defines: .*"),
        (settings("number"), "tools: './shop.py:number' is a int, and must be a class whose methods are tools"),
        (settings("Bare"), "tools: './shop.py:Bare': Bare has no tools; give each public method that is a tool a docstring"),
        (settings("Asks"), "tools: './shop.py:Asks': the constructor of Asks has an unknown parameter: colour; known: scenario, state"),
        (
            settings("Many"),
            r"tools: './shop.py:Many': the tool 'tell' has a parameter that models cannot pass: \*items; use one that is passed by name",
        ),
        (settings("Odd"), "tools: './shop.py:Odd': the parameters of the tool 'tell' cannot be described by a JSON Schema: .*"),
        (
            settings("Lost"),
            "tools: './shop.py:Lost': the parameters of the tool 'tell' cannot be described by a .*'Nowhere'.*",
        ),
    ],
)
def test_tools_that_cannot_be_used(folder: Path, given: Json, sentence: str) -> None:
    """The error says in one sentence what is wrong, and what would work."""
    with pytest.raises(ConfigError, match=f"^{sentence}$"):
        load_tools(given, folder, ())


def data_tool(name: str, *properties: str, required: tuple[str, ...] = ()) -> Tool:
    return Tool(name, "", {"type": "object", "properties": {each: {} for each in properties}, "required": [*required]})


@pytest.mark.parametrize(
    ("tool", "sentence"),
    [
        (data_tool("tell", "item", required=("item",)), ""),
        (data_tool("ask"), "the data list a tool that does not exist: no tool 'ask'; known: tell"),
        (data_tool("tell", "item"), r"the tool 'tell' takes \(item\), and in the data it takes \(item=...\); they should agree"),
        (data_tool("tell", required=()), r"the tool 'tell' takes \(item\), and in the data it takes \(\); they should agree"),
    ],
)
def test_the_datas_tools_and_the_class_agree(folder: Path, tool: Tool, sentence: str) -> None:
    """If the data contain tools, the model sees these. A tool or parameter that the class lacks is refused."""
    scenario = Scenario("s-0", (HELLO,), (tool,))
    if not sentence:
        assert scenario is load_tools(settings("Plain"), folder, [scenario]).for_scenario(scenario)
        return
    with pytest.raises(ConfigError, match=f"^tools: './shop.py:Plain': {sentence}$"):
        load_tools(settings("Plain"), folder, [scenario])


def test_labels_name_tools_of_the_class(folder: Path) -> None:
    """If only the class has tools, a label that names an unknown tool is refused."""
    scenario = Scenario("s-0", (HELLO,), expected=({"tool": "tel"},))

    with pytest.raises(
        ConfigError, match=r"^tools: './shop.py:Plain': s-0: an expected call: no tool 'tel' .did you mean 'tell'..; known: tell$"
    ):
        load_tools(settings("Plain"), folder, [scenario])
