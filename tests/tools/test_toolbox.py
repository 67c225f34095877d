"""Decision-only tools: calls are recorded with their problems, and answered."""

from __future__ import annotations

import asyncio
import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pytest_agentbench
from pytest_agentbench.errors import ToolError
from pytest_agentbench.lib.threads import in_thread, no_threads
from pytest_agentbench.records import Json, ToolCall
from pytest_agentbench.suites.suite import Tool
from pytest_agentbench.tools.source import DecisionOnly, sample_response
from pytest_agentbench.tools.toolbox import BlockingToolbox, Toolbox


def tool(name: str = "transfer", response: Json | None = None, **properties: Json) -> Tool:
    """Returns a tool with a required amount, which forbids unknown parameters."""
    parameters = {
        "type": "object",
        "properties": {"amount": {"type": "number", "minimum": 0}, **properties},
        "required": ["amount"],
        "additionalProperties": False,
    }
    return Tool(name, "Moves money.", parameters, response or {})


async def test_a_good_call() -> None:
    """A call that fits is recorded without a problem, and answered with the canned response."""
    tools = Toolbox([tool()])

    assert "transfer is done." == await tools.call("transfer", '{"amount": 5}', 2)
    (call,) = tools.calls
    assert ToolCall("transfer", {"amount": 5}, 2) == replace(call, started_ns=None, ended_ns=None)
    assert call.started_ns is not None and call.ended_ns is not None
    assert 0 <= call.ended_ns - call.started_ns


@pytest.mark.parametrize(
    ("name", "arguments", "recorded", "problem", "detail"),
    [
        ("tranfer", '{"amount": 5}', {"amount": 5}, "unknown_tool", "there is no tool 'tranfer'; the tools are: transfer, balance"),
        ("tranfer", "{", {}, "unknown_tool", "there is no tool 'tranfer'; the tools are: transfer, balance"),
        ("transfer", "{", {}, "malformed_arguments", "the arguments of transfer are not valid JSON ("),
        ("transfer", '{"amount": NaN}', {}, "malformed_arguments", "the arguments of transfer are not valid JSON ("),
        ("transfer", "[5]", {}, "malformed_arguments", "the arguments of transfer are a JSON list, not an object"),
        ("transfer", "null", {}, "malformed_arguments", "the arguments of transfer are a JSON NoneType, not an object"),
        (
            "transfer",
            "",
            {},
            "invalid_arguments",
            "the arguments of transfer do not fit its schema: data must contain ['amount'] properties",
        ),
        (
            "transfer",
            '{"amount": "5"}',
            {"amount": "5"},
            "invalid_arguments",
            "the arguments of transfer do not fit its schema: data.amount must be number",
        ),
        (
            "transfer",
            '{"amount": -5}',
            {"amount": -5},
            "invalid_arguments",
            "the arguments of transfer do not fit its schema: data.amount must be bigger than or equal to 0",
        ),
        (
            "transfer",
            '{"amount": 5, "to": "Ann"}',
            {"amount": 5, "to": "Ann"},
            "invalid_arguments",
            "the arguments of transfer do not fit its schema: data must not contain {'to'} properties",
        ),
    ],
)
async def test_faulty_calls(name: str, arguments: str, recorded: Json, problem: str, detail: str) -> None:
    """A faulty call is recorded with its problem and parsed arguments, or its text if it cannot be parsed. The model gets an error."""
    tools = Toolbox([tool(), tool("balance")])

    answer = await tools.call(name, arguments, 1)

    (call,) = tools.calls
    assert (name, recorded, 1, problem) == (call.name, call.arguments, call.turn, call.problem)
    assert call.detail.startswith(detail)
    assert f"Error: {call.detail}" == answer
    assert (arguments if problem == "malformed_arguments" else None) == call.raw


@pytest.mark.parametrize(
    ("name", "arguments", "recorded", "problem"),
    [
        ("transfer", "{'amount': 5}", {"amount": 5}, None),
        ("transfer", '{"amount": -5, }', {"amount": -5}, "invalid_arguments"),
        ("tranfer", "```json\n{'amount': 5}\n```", {"amount": 5}, "unknown_tool"),
    ],
)
async def test_arguments_that_are_almost_json(name: str, arguments: str, recorded: Json, problem: str | None) -> None:
    """Arguments that are almost JSON are repaired, marked, and kept as written. With `repair=False` they are refused."""
    tools = Toolbox([tool()])

    await tools.call(name, arguments, 1)
    await tools.call(name, arguments, 1, repair=False)

    lenient, strict = tools.calls
    assert (recorded, problem, arguments, True) == (lenient.arguments, lenient.problem, lenient.raw, lenient.repaired)
    assert ({}, problem if problem == "unknown_tool" else "malformed_arguments", False) == (
        strict.arguments,
        strict.problem,
        strict.repaired,
    )


async def test_arguments_stay_as_the_model_wrote_them() -> None:
    """Defaults of the schema are not added to the record."""
    tools = Toolbox([tool(currency={"type": "string", "default": "EUR"})])
    await tools.call("transfer", '{"amount": 5}', 1)

    assert {"amount": 5} == tools.calls[0].arguments


async def test_rollouts_do_not_mix() -> None:
    """Two toolboxes of the same tools have separate records."""
    shared = (tool(),)
    ann, ben = Toolbox(shared), Toolbox(shared)

    await ann.call("transfer", '{"amount": 1}', 1)
    await ben.call("transfer", '{"amount": 2}', 1)
    await ann.call("transfer", '{"amount": 3}', 2)

    assert [1, 3] == [call.arguments["amount"] for call in ann.calls]
    assert [2] == [call.arguments["amount"] for call in ben.calls]


async def test_tools_of_one_name_keep_their_schemas() -> None:
    """Scenarios may have different tools with the same name. Each call is checked by the schema of its scenario."""
    strict, loose = tool(), Tool("transfer", "", {"type": "object"})

    for schema, problem in ((strict, "invalid_arguments"), (loose, None), (strict, "invalid_arguments")):
        tools = Toolbox([schema])
        await tools.call("transfer", "{}", 1)

        assert problem == tools.calls[0].problem


def test_the_model_sees_the_real_schema() -> None:
    """A request contains the name, the description and the parameter schema of a tool, but not its response schema."""
    one = tool(response={"properties": {"secret": {"type": "string"}}})

    assert [{"type": "function", "function": {"name": "transfer", "description": "Moves money.", "parameters": one.parameters}}] == Toolbox(
        [one]
    ).schemas
    assert "secret" not in json.dumps(Toolbox([one]).schemas)


@pytest.mark.parametrize(
    ("field", "sample"),
    [
        ({"type": "string"}, "sample field"),
        ({}, "sample field"),
        ({"type": "integer"}, 100),
        ({"type": "number"}, 100.5),
        ({"type": "boolean"}, True),
        ({"type": "array", "items": {"type": "string"}}, []),
        ({"type": "object"}, {}),
        ({"type": "null"}, None),
        ({"type": ["integer", "null"]}, 100),
        ({"type": []}, "sample field"),
        ({"type": "date"}, "sample field"),
        ({"type": {"not": "a type"}}, "sample field"),
        ({"type": "string", "enum": ["open", "closed"]}, "open"),
        ({"enum": []}, "sample field"),
        ({"enum": "open"}, "sample field"),
        ("string", "sample field"),
    ],
)
def test_canned_responses(field: Any, sample: Any) -> None:
    """A canned response has a value of the right type for every field, and is always the same. An unusual schema gets a text."""
    answer = sample_response(tool(response={"type": "object", "properties": {"field": field, "ok": {"type": "boolean"}}}))

    assert {"field": sample, "ok": True} == json.loads(answer)


@pytest.mark.parametrize("schema", [{}, {"type": "object"}, {"properties": {}}, {"properties": None}])
def test_a_tool_without_a_response_schema(schema: Json) -> None:
    """A tool without a response schema answers that it is done."""
    assert "transfer is done." == sample_response(tool(response=schema))


class Slow(DecisionOnly):
    """A source whose answers wait until the test releases them."""

    def __init__(self) -> None:
        self.asked, self.answers = asyncio.Event(), dict[float, asyncio.Future[str]]()

    async def call(self, tool: Tool, arguments: Json) -> str:
        del tool
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.answers[arguments["amount"]] = answer
        self.asked.set()
        return await answer

    def copy(self) -> Slow:
        return self


async def test_concurrent_calls_keep_their_order() -> None:
    """Calls are recorded in the order in which they begin, whichever ends first. Cancelled calls are recorded, too."""
    source = Slow()
    tools = Toolbox([tool()], source=source)
    async with asyncio.TaskGroup() as tasks:
        made = [tasks.create_task(tools.call("transfer", f'{{"amount": {amount}}}', 1)) for amount in (1, 2, 3)]
        while len(source.answers) < 3:
            await source.asked.wait()
            await asyncio.sleep(0)
        source.answers[2].set_result("second")
        await made[1]
        made[2].cancel()
        source.answers[1].set_result("first")

    assert ("first", "second", True) == (made[0].result(), made[1].result(), made[2].cancelled())
    assert [1, 2, 3] == [call.arguments["amount"] for call in tools.calls]
    assert all(call.started_ns is not None and call.ended_ns is not None for call in tools.calls)


async def test_a_tool_that_refuses() -> None:
    """The model gets the refusal, which is recorded. The call itself has no problem."""

    class Refusing(DecisionOnly):
        async def call(self, tool: Tool, arguments: Json) -> str:
            raise ToolError(f"{tool.name}: only {arguments['amount'] - 1} left")

    tools = Toolbox([tool()], source=Refusing())

    assert "Error: transfer: only 4 left" == await tools.call("transfer", '{"amount": 5}', 1)
    (call,) = tools.calls
    assert (None, "", "transfer: only 4 left") == (call.problem, call.detail, call.refusal)


async def test_calls_of_code_that_blocks() -> None:
    """Blocking code can call tools from several threads at once, and also from the thread of the event loop, as in a debugger."""
    tools = Toolbox([tool()])
    there = BlockingToolbox(tools)

    with ThreadPoolExecutor(2) as threads:
        said = await asyncio.gather(
            *(asyncio.get_running_loop().run_in_executor(threads, there.call, "transfer", f'{{"amount": {each}}}', 1) for each in (1, 2))
        )
    with no_threads():
        here = await in_thread(there.call, "transfer", '{"amount": 3}', 1)

    assert (["transfer is done."] * 2, "transfer is done.") == (said, here)
    assert [1, 2, 3] == sorted(call.arguments["amount"] for call in there.calls)
    assert (tools.schemas, tools.tools, tools.calls) == (there.schemas, there.tools, there.calls)


def test_calls_that_were_carried_out_elsewhere() -> None:
    """Calls that were carried out elsewhere are recorded with their problems, but without a time."""
    tools = Toolbox([tool()])

    assert "transfer is done." == tools.record("transfer", '{"amount": 5}', 1)
    assert "Error: there is no tool 'find'; the tools are: transfer" == tools.record("find", "{}", 2)
    assert [("transfer", None, None), ("find", "unknown_tool", None)] == [
        (call.name, call.problem, call.started_ns) for call in tools.calls
    ]


async def test_calls_of_a_mirrored_toolbox_are_recorded_at_once() -> None:
    """The calls of a mirrored toolbox are added to the original's own calls, when they begin and when they end.

    Those of an unmirrored copy are not.
    """
    source = Slow()
    tools = Toolbox([tool()], source=source)
    tools.add(ToolCall("transfer", {"amount": 1}, 1))
    task = asyncio.create_task(tools.fresh(mirrored=True).call("transfer", '{"amount": 2}', 1))
    await source.asked.wait()
    await asyncio.sleep(0)

    assert [(1, None), (2, None)] == [(call.arguments["amount"], call.ended_ns) for call in tools.calls]
    source.answers[2].set_result("done")
    await task
    assert tools.calls[1].ended_ns is not None
    tools.fresh().record("transfer", '{"amount": 3}', 1)
    assert 2 == len(tools.calls)


def test_only_the_toolbox_changes_its_calls() -> None:
    """Only the toolbox changes the list of calls, so that an isolated process can report each call when it is recorded."""
    changes = re.compile(r"tools\.calls(\.(append|extend|insert|clear)\b|\[[^\]]*\] = )")
    package = Path(pytest_agentbench.__file__).parent

    assert [] == [file.name for file in package.rglob("*.py") if changes.search(file.read_text(encoding="utf-8"))]
