"""The agent `tool_calling`: single calls, truncated answers and empty answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.agents.tool_calling import ToolCalling
from pytest_agentbench.errors import AgentError, LimitReached
from pytest_agentbench.records import Answer, Json
from pytest_agentbench.suites.suite import Scenario
from tests.agents.scripted import QUESTION, SCENARIO, staged

LAMP, TABLE = ({"name": "find_item", "arguments": {"item": item}} for item in ("lamp", "table"))
DONE: Json = {"text": "There is one in the shop for you."}


@pytest.mark.parametrize(("parallel", "called"), [(True, ["lamp", "table"]), (False, ["lamp"])])
async def test_without_parallel_calls(tmp_path: Path, parallel: bool, called: list[str]) -> None:
    """With `parallel: false` the request says so. If the model still makes several calls, only the first one counts."""
    async with staged(tmp_path, [{"tool_calls": [LAMP, TABLE]}, DONE]) as stage:
        await ToolCalling(parallel=parallel).run(SCENARIO, stage.llm, stage.tools)
        first, second = stage.requests

    assert called == [call.arguments["item"] for call in stage.tools.calls]
    assert (None if parallel else False) == first.get("parallel_tool_calls")
    *_, asked = (message for message in second["messages"] if message["role"] == "assistant")
    results = [message["tool_call_id"] for message in second["messages"] if message["role"] == "tool"]
    assert len(called) == len(results)
    assert results == [call["id"] for call in asked["tool_calls"]]


async def test_parallel_calls_without_tools(tmp_path: Path) -> None:
    """Without tools a request does not mention parallel calls, because servers refuse that."""
    async with staged(tmp_path, [DONE]) as stage:
        await ToolCalling(parallel=False).run(Scenario("s-0", (QUESTION,)), stage.llm, type(stage.tools)(()))
        (request,) = stage.requests

    assert ("tools" in request, "parallel_tool_calls" in request) == (False, False)


@pytest.mark.parametrize(
    ("retry", "limits"),
    [
        ({}, [2]),
        ({"max_retries": 0, "token_increment": 9}, [2]),
        ({"max_retries": 1}, [2, 1026]),
        ({"max_retries": 5, "token_increment": 3}, [2, 5, 8, 11]),
        ({"max_retries": 3, "token_scaling": 1.6}, [2, 4, 7, 12]),
        ({"max_retries": 2, "token_increment": 1}, [2, 3, 4]),
    ],
)
async def test_answers_that_are_cut(tmp_path: Path, retry: Json, limits: list[int]) -> None:
    """A request with a truncated answer is repeated with a higher limit. After the last retry the rollout ends at its limit."""
    async with staged(tmp_path, [DONE], max_tokens=2) as stage:
        run = ToolCalling(truncation_retry=retry).run(SCENARIO, stage.llm, stage.tools)
        if limits[-1] < 9:
            with pytest.raises(LimitReached, match=f"tokens: the answer was truncated after {limits[-1]} tokens"):
                await run
        else:
            assert Answer(DONE["text"]) == await run
        requests = stage.requests

    assert limits == [request["max_tokens"] for request in requests]
    assert 1 == len({str(request["messages"]) for request in requests})


async def test_calls_that_are_cut(tmp_path: Path) -> None:
    """The calls of a truncated answer are not carried out, because their arguments may be incomplete."""
    async with staged(tmp_path, [{"tool_calls": [LAMP], "finish_reason": "length"}]) as stage:
        with pytest.raises(LimitReached, match="tokens: the answer was truncated after"):
            await ToolCalling().run(SCENARIO, stage.llm, stage.tools)

    assert [] == stage.called


@pytest.mark.parametrize("retries", [0, 1, 2])
async def test_empty_answers(tmp_path: Path, retries: int) -> None:
    """A request with an empty answer is repeated. After the last retry it is an agent error."""
    async with staged(tmp_path, [{"text": " \n"}, {"text": ""}, DONE]) as stage:
        run = ToolCalling(max_empty_response_retries=retries).run(SCENARIO, stage.llm, stage.tools)
        if retries < 2:
            with pytest.raises(AgentError, match="the model's answer is empty: no text and no tool call"):
                await run
        else:
            assert Answer(DONE["text"]) == await run
        requests = stage.requests

    assert retries + 1 == len(requests)
    assert requests == [requests[0]] * len(requests)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"parallel": "no"}, "parallel must be true or false, not 'no'"),
        ({"max_empty_response_retries": -1}, "max_empty_response_retries must be a whole number from 0 up, not -1"),
        ({"truncation_retry": 3}, "truncation_retry must be a mapping, not 3"),
        (
            {"truncation_retry": {"retries": 3}},
            (
                "truncation_retry: unknown key 'retries' (did you mean 'max_retries'?); "
                "known keys: max_retries, token_increment, token_scaling"
            ),
        ),
        (
            {"truncation_retry": {"max_retries": None}},
            "truncation_retry.max_retries must be a whole number from 0 up, not None",
        ),
        ({"truncation_retry": {"token_increment": 0}}, "truncation_retry.token_increment must be a whole number from 1 up, not 0"),
        ({"truncation_retry": {"token_scaling": 1}}, "truncation_retry.token_scaling must be a number above 1, not 1"),
        (
            {"truncation_retry": {"token_scaling": 2, "token_increment": 5}},
            "truncation_retry must have only one of token_increment and token_scaling",
        ),
    ],
)
def test_wrong_options(options: dict[str, Any], sentence: str) -> None:
    """An invalid option is refused by its name."""
    with pytest.raises((TypeError, ValueError)) as caught:
        ToolCalling(**options)

    assert sentence == str(caught.value)
