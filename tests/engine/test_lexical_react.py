"""The policy `lexical` in the ReAct format: it makes the same choices as with native tools, and writes them as text."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.agents.react import SYSTEM_PROMPT, question_text, system_text
from pytest_agentbench.engine.chat import parse_chat
from pytest_agentbench.engine.lexical.policy import Lexical, as_native
from pytest_agentbench.records import Json
from pytest_agentbench.suites.suite import Tool

TEXT = "Find the nearest branch in Boston. Tell me the balance of my savings account. My debit card was lost, please block that card."


def opening(tools: list[Json], text: str = TEXT, prompt: str = SYSTEM_PROMPT, *, schemas: bool = True) -> list[Json]:
    functions = [tool["function"] for tool in tools]
    known = [Tool(each["name"], each["description"], each["parameters"]) for each in functions]
    system = {"role": "system", "content": system_text(prompt, "", known, schemas=schemas)}
    return [system, {"role": "user", "content": question_text([{"role": "user", "content": text}], 0)}]


def conversation(messages: list[Json]) -> list[str]:
    """Returns the answers of the policy up to its final answer."""
    said: list[str] = []
    while not (said and "Final Answer:" in said[-1]):
        reply = Lexical().reply({"messages": messages})
        assert () == reply.tool_calls
        said.append(reply.text)
        messages = [*messages, {"role": "assistant", "content": said[-1]}, {"role": "user", "content": "Observation: done"}]
    return said


def test_one_action_after_the_other(tools: list[Json]) -> None:
    """Each answer has one thought and one action, until the final answer lists what was done."""
    *actions, last = conversation(opening(tools))

    assert [
        'Action: find_branch\nAction Input: {"location":"Boston"}',
        'Action: get_balance\nAction Input: {"account_type":"savings"}',
        'Action: report_card\nAction Input: {"card_type":"debit","incident":"lost"}',
    ] == [text.partition("\n")[2] for text in actions]
    assert all(text.startswith("Thought: ") for text in actions)
    assert last.startswith("Thought: I now know the final answer\nFinal Answer: I have taken care of your request with these steps: find")


def test_the_same_choice_as_with_native_tools(tools: list[Json]) -> None:
    """The tools read from the prompt equal those of a request with native tools."""
    native = as_native({"messages": opening(tools)})

    assert native is not None
    assert [{**tool["function"], "description": tool["function"]["description"]} for tool in tools] == [
        each["function"] for each in native["tools"]
    ]
    assert [{"role": "user", "content": TEXT}] == native["messages"]


def test_tools_without_schemas(tools: list[Json]) -> None:
    """Tools that the prompt only describes, without schemas, are called, too."""
    first, *_ = conversation(opening(tools, schemas=False))

    assert first.endswith("Action: find_branch\nAction Input: {}")


@pytest.mark.parametrize("observation", ["Observation: see\n", ""])
def test_prompts_of_others(tools: list[Json], observation: str) -> None:
    """A different prompt in the ReAct format works, with tools as a list and another introduction of schemas.

    It need not mention observations.
    """
    prompt = (
        "Tools:\n{tools}\n\nNote: be quick.\nThought: think\nAction: the name, from {tool_names}\nAction Input: JSON\n"
        f"{observation}Final Answer: the end"
    )
    messages = opening(tools, prompt=prompt)
    text = re.sub(r"^(?=\w+: .*Arguments must)", "- ", messages[0]["content"], flags=re.MULTILINE)
    text = text.replace("Arguments must fit this JSON schema:", "Arguments must be provided as a valid JSON object following this format:")
    native = as_native({"messages": [{"role": "system", "content": text}, messages[1]]})

    assert native is not None
    assert [tool["function"] for tool in tools] == [tool["function"] for tool in native["tools"]]


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": SYSTEM_PROMPT}],
        [{"role": "system", "content": "Thought: Action: Action Input:"}, {"role": "user", "content": "Hello"}],
        [{"role": "user", "content": "Hello"}, {"role": "user", "content": "Hello"}],
    ],
)
def test_other_requests_are_answered_as_usual(messages: list[Json], tools: list[Json]) -> None:
    """A request without the ReAct prompt, or with native tools, is answered in the usual way."""
    assert None is as_native({"messages": messages})
    assert None is as_native({"messages": opening(tools), "tools": tools})


def test_it_stops(lexical: str, tools: list[Json]) -> None:
    """The answer ends before the first stop sequence of the request."""
    request: Json = {"model": "embedded-lexical", "messages": opening(tools)}
    whole, cut = (
        httpx.post(f"{lexical}/v1/chat/completions", json={**request, "stop": stop}, timeout=30).json()["choices"][0]
        for stop in (["\nObservation:"], ["\nAction Input:"])
    )

    assert whole["message"]["content"].partition("\nAction Input:")[0] == cut["message"]["content"]
    assert "find_branch" in cut["message"]["content"]
    assert ("stop", "stop") == (whole["finish_reason"], cut["finish_reason"])


PIECES = st.sampled_from(["find: ", "Arguments: {", '{"type": 5}', "}", "\n", "- ", "Action: ", "find", "Question: ", "\n\n", "Thought:"])
TEXTS = st.lists(PIECES | st.text(max_size=6), max_size=15).map("".join)


@given(tools=TEXTS, question=TEXTS, said=TEXTS)
def test_never_fails_on_odd_prompts(tools: str, question: str, said: str) -> None:
    """For any text in and after a ReAct prompt, the answer is in the ReAct format."""
    roles: list[tuple[str, Any]] = [("system", SYSTEM_PROMPT + tools), ("user", question), ("assistant", said), ("user", said)]
    messages = [{"role": role, "content": content} for role, content in roles]
    request = parse_chat(httpx.Request("POST", "http://e", json={"model": "m", "messages": messages}).content, "m")

    assert Lexical().reply(request).text.startswith("Thought: ")
