"""Canned answers of tools, from suite.yaml."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.suites.suite import Scenario, Tool
from pytest_agentbench.tools.factory import answers_from, check_answers, with_canned_answers
from pytest_agentbench.tools.source import DecisionOnly
from pytest_agentbench.tools.toolbox import Toolbox

FIND, ORDER = (Tool(name, "", {"type": "object", "required": []}) for name in ("find_item", "order_item"))
SCENARIO = Scenario("s-0", (), (FIND, ORDER))


def toolbox(answers: Mapping[str, Any], trial: int = 1) -> Toolbox:
    return Toolbox(SCENARIO.tools, source=with_canned_answers(DecisionOnly(), answers_from(dict(answers)), SCENARIO, trial))


async def errors(tools: Toolbox, name: str, calls: int = 200) -> list[bool]:
    """Returns for each of several calls whether its answer was an error."""
    return [(await tools.call(name, "{}", 1)).startswith("Error: ") for _ in range(calls)]


async def test_tools_with_and_without_canned_answers() -> None:
    """A tool with a canned answer returns it, and the source answers the others. Arguments are checked before a canned answer, too."""
    tools = toolbox({"find_item": {"text": "three left"}})

    assert ["three left", "order_item is done."] == [await tools.call(name, "{}", 1) for name in ("find_item", "order_item")]
    assert (await tools.call("find_item", "[", 1)).startswith("Error: the arguments of find_item are not valid JSON")
    assert [None, None, "malformed_arguments"] == [call.problem for call in tools.calls]


async def test_errors_come_at_the_same_calls() -> None:
    """About the given share of calls fails. Other trials, tools and scenarios have other errors, and a repetition has the same ones."""
    both = {"find_item": {"text": "three left", "error_rate": 0.2}, "order_item": {"error_rate": 0.2}}
    first, other = toolbox(both), toolbox(both, trial=2)
    found, ordered, again, later = [
        await errors(tools, name)
        for tools, name in ((first, "find_item"), (first, "order_item"), (toolbox(both), "find_item"), (other, "find_item"))
    ]

    assert found == again
    assert 3 == len({tuple(each) for each in (found, ordered, later)})
    assert all(20 <= sum(each) <= 60 for each in (found, ordered, later))
    assert found == [call.injected for call in first.calls[:200]]
    assert {("", False), ("find_item failed", True)} == {(call.refusal, call.injected) for call in first.calls[:200]}


async def test_rates_at_the_ends() -> None:
    """With a rate of 0 no call fails, with 1 every call."""
    assert (0, 200) == (sum(await errors(toolbox({"find_item": {"text": ""}}), "find_item")),
                        sum(await errors(toolbox({"find_item": {"error_rate": 1.0}}), "find_item")))  # fmt: skip


async def test_a_delay_is_part_of_the_call() -> None:
    """The answer comes after the delay, which counts as time of the call. Concurrent calls wait at the same time."""
    tools = toolbox({"find_item": {"delay": 0.05}})

    assert ["find_item is done."] * 2 == await asyncio.gather(*(tools.call("find_item", "{}", 1) for _ in range(2)))
    first, second = ((call.started_ns or 0, call.ended_ns or 0) for call in tools.calls)
    assert all(50e6 <= ended - started for started, ended in (first, second))
    assert second[0] < first[1]


async def test_further_drafts_have_the_same_errors() -> None:
    """A copy of the tools has the same later errors as the original."""
    tools = toolbox({"find_item": {"error_rate": 0.5}})
    await errors(tools, "find_item", 3)
    other = tools.fresh()

    assert await errors(other, "find_item", 50) == await errors(tools, "find_item", 50)


def test_an_unknown_tool() -> None:
    """An unknown tool is refused with the names of the known ones."""
    with pytest.raises(ConfigError, match=r"^answers: no tool 'find_itm' .did you mean 'find_item'..; known: find_item, order_item$"):
        check_answers(answers_from({"find_itm": {"text": ""}}), [SCENARIO])
