"""The agent `react`: its text format, invalid answers, and limits."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.agents.react import EMPTY_ANSWER, MISSING_ACTION, MISSING_INPUT, React
from pytest_agentbench.agents.run import work
from pytest_agentbench.errors import AgentError, LimitReached
from pytest_agentbench.records import Answer, Json
from tests.agents.scripted import FIND, QUESTION, SCENARIO, staged

FIND_LAMP: Json = {"text": 'Thought: look\nAction: find_item\nAction Input: {"item": "lamp"}'}
DONE: Json = {"text": "Thought: I now know the final answer\nFinal Answer: There is one."}
HM: Json = {"text": "Thought: I should look."}


async def test_a_conversation(tmp_path: Path) -> None:
    """The model gets format, tools and question, then its own text and the result of each action. The request has no `tools`."""
    async with staged(tmp_path, [FIND_LAMP, DONE]) as stage:
        answer = await React().run(SCENARIO, stage.llm, stage.tools)
        first, second = stage.requests

    assert Answer("There is one.") == answer
    assert [("find_item", {"item": "lamp"})] == stage.called
    assert ("tools" in first, ["\nObservation:"]) == (False, first["stop"])
    system, question = first["messages"]
    assert ["system", "user"] == [system["role"], question["role"]]
    schema = '{"type":"object","properties":{"item":{"type":"string"}},"required":["item"]}'
    assert f"\nfind_item: Finds an item. Arguments must fit this JSON schema: {schema}\norder_item: " in system["content"]
    assert "Action: one of [find_item, order_item]\n" in system["content"]
    assert "Previous conversation history:\n\n\nQuestion: Is there a lamp?" == question["content"]
    message = {"role": "assistant", "content": FIND_LAMP["text"]}
    result = {"role": "user", "content": "Observation: find_item is done."}
    assert [*first["messages"], message, result] == second["messages"]
    assert [*second["messages"], {"role": "assistant", "content": DONE["text"]}] == stage.llm.transcript


async def test_results_that_the_model_makes_up(tmp_path: Path) -> None:
    """Only the first cycle of an answer counts. The others are neither carried out nor sent back to the model."""
    dream = f"{FIND_LAMP['text']}\nObservation: one\nThought: order it\nAction: order_item\nAction Input: {{}}\nFinal Answer: Ordered."
    async with staged(tmp_path, [{"text": dream}, DONE]) as stage:
        await React(stop=()).run(SCENARIO, stage.llm, stage.tools)
        first, second = stage.requests

    assert [("find_item", {"item": "lamp"})] == stage.called
    assert "stop" not in first
    assert FIND_LAMP["text"] == second["messages"][-2]["content"]


async def test_invalid_answers_are_reported_and_removed(tmp_path: Path) -> None:
    """The model gets its invalid answer and the error. Both are removed after a valid answer."""
    async with staged(tmp_path, [HM, {"text": "Action: find_item"}, FIND_LAMP, DONE]) as stage:
        await React(parse_agent_response_max_retries=2).run(SCENARIO, stage.llm, stage.tools)
        first, second, third, fourth = (request["messages"] for request in stage.requests)

    told = [{"role": "assistant", "content": HM["text"]}, {"role": "user", "content": MISSING_ACTION}]
    assert [*first, *told] == second
    assert [*second, {"role": "assistant", "content": "Action: find_item"}, {"role": "user", "content": MISSING_INPUT}] == third
    assert [*first, {"role": "assistant", "content": FIND_LAMP["text"]}] == fourth[:-1]


async def test_an_answer_of_white_space(tmp_path: Path) -> None:
    """After an empty answer the model is told how to end. The empty answer is not sent back."""
    async with staged(tmp_path, [{"text": " \n"}, DONE]) as stage:
        await React().run(SCENARIO, stage.llm, stage.tools)
        first, second = (request["messages"] for request in stage.requests)

    assert [*first, {"role": "user", "content": EMPTY_ANSWER}] == second


@pytest.mark.parametrize(
    ("options", "requests"), [({}, 3), ({"parse_agent_response_max_retries": 0}, 2), ({"retry_agent_response_parsing_errors": False}, 2)]
)
async def test_a_model_that_stays_wrong(tmp_path: Path, options: Json, requests: int) -> None:
    """After the last retry it is an agent error, or the answer if so configured. Earlier tools do not run again."""
    for number, raises in enumerate((True, False)):
        folder = tmp_path / str(number)
        folder.mkdir()
        async with staged(folder, [FIND_LAMP, HM]) as stage:
            run = React(**options, raise_on_parsing_failure=raises).run(SCENARIO, stage.llm, stage.tools)
            if raises:
                with pytest.raises(AgentError, match="the model's answer is not in ReAct format: Invalid Format: Missing 'Action:'"):
                    await run
            else:
                assert Answer(f"{MISSING_ACTION}\n{HM['text']}") == await run
            asked = stage.requests

        assert [("find_item", {"item": "lamp"})] == stage.called
        assert requests == len(asked)
        assert HM["text"] == stage.llm.transcript[-1]["content"]


async def test_the_last_tool_call(tmp_path: Path) -> None:
    """Weakness 8 of the NeMo toolkit: after `max_tool_calls` the model may still answer.

    One more call is not made and ends the rollout at its limit.
    """
    for number, (answers, limited) in enumerate((([FIND_LAMP, FIND_LAMP, DONE], False), ([FIND_LAMP], True))):
        folder = tmp_path / str(number)
        folder.mkdir()
        async with staged(folder, answers) as stage:
            run = React(max_tool_calls=2).run(SCENARIO, stage.llm, stage.tools)
            if limited:
                with pytest.raises(LimitReached, match="tool calls: 2 were not enough"):
                    await run
            else:
                assert Answer("There is one.") == await run

        assert [1, 2] == [call.turn for call in stage.tools.calls]


async def test_an_answer_that_is_cut(tmp_path: Path) -> None:
    """A truncated answer is not parsed, because it may be incomplete."""
    async with staged(tmp_path, [FIND_LAMP], max_tokens=14) as stage:
        with pytest.raises(LimitReached, match="tokens: the answer was truncated after 14 tokens"):
            await React().run(SCENARIO, stage.llm, stage.tools)

    assert [] == stage.called


async def test_faulty_calls_are_recorded_and_reported(tmp_path: Path) -> None:
    """Unknown tools and invalid or missing arguments are recorded as calls, and the model gets the error."""
    answers: list[Json] = [
        {"text": "Action: find_lamp\nAction Input: {}"},
        {"text": 'Action: find_item\nAction Input: {"item": 5}'},
        {"text": "Action: find_item\nAction Input: None"},
        {"text": "Action: order_item\nAction Input: None"},
        {"text": "Action: order_item\nAction Input: a lamp"},
        DONE,
    ]
    async with staged(tmp_path, answers) as stage:
        await React().run(SCENARIO, stage.llm, stage.tools)
        told = [message["content"] for message in stage.requests[-1]["messages"][3::2]]

    problems = ["unknown_tool", "invalid_arguments", "invalid_arguments", None, "malformed_arguments"]
    assert problems == [call.problem for call in stage.tools.calls]
    for call, observation in zip(stage.tools.calls, told, strict=True):
        assert (f"Observation: Error: {call.detail}" if call.problem else "Observation: order_item is done.") == observation


@pytest.mark.parametrize(("repair", "problem"), [(True, None), (False, "malformed_arguments")])
async def test_quotes(tmp_path: Path, repair: bool, problem: str | None) -> None:
    """An input in single quotes is repaired and marked. Without `normalize_tool_input_quotes` it is malformed."""
    async with staged(tmp_path, [{"text": "Action: find_item\nAction Input: {'item': \"Ann's\", }"}, DONE]) as stage:
        await React(normalize_tool_input_quotes=repair).run(SCENARIO, stage.llm, stage.tools)

    (call,) = stage.tools.calls
    assert ({"item": "Ann's"} if repair else {}, problem, repair) == (call.arguments, call.problem, call.repaired)
    assert "{'item': \"Ann's\", }" == call.raw


CALL: Json = {"id": "1", "type": "function", "function": {"name": "find_item", "arguments": '{"item":"lamp"}'}}
EARLIER: tuple[Json, ...] = (
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "One moment.", "tool_calls": [CALL, CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "found"},
    {"role": "assistant", "content": None},
    {"role": "user", "content": [{"type": "text", "text": "And"}, {"type": "image_url", "image_url": {}}]},
    {"role": "user", "content": "now?"},
)


@pytest.mark.parametrize(("kept", "lines"), [(15, 7), (4, 7), (3, 6), (2, 1), (0, 0)])
async def test_earlier_messages(tmp_path: Path, kept: int, lines: int) -> None:
    """Earlier messages are the history, in ReAct format. The question is the user's last messages."""
    async with staged(tmp_path, [DONE]) as stage:
        await React(max_history=kept).run(dataclasses.replace(SCENARIO, messages=EARLIER), stage.llm, stage.tools)
        (request,) = stage.requests

    call = 'Action: find_item\nAction Input: {"item":"lamp"}'
    history = f"user: Hello\nassistant: One moment.\n{call}\n{call}\nObservation: found".split("\n")
    shown = "\n".join(history[len(history) - lines :])
    assert f"Previous conversation history:\n{shown}\n\nQuestion: And\nnow?" == request["messages"][1]["content"]
    assert request["messages"][0]["content"].endswith("\n\nBe kind.")


async def test_a_user_with_more_to_say(tmp_path: Path) -> None:
    """The user's next message is the next question, and the conversation before it is history."""
    later = dataclasses.replace(SCENARIO, turns=(({"role": "user", "content": "And a table?"},),))
    async with staged(tmp_path, [FIND_LAMP, DONE, {"text": "Final Answer: No."}]) as stage:
        answer = await work(React(), later, stage.llm, stage.tools)
        question = stage.requests[-1]["messages"][1]["content"]

    assert Answer("No.") == answer
    assert "Previous conversation history:\nuser: Is there a lamp?\nassistant: There is one.\n\nQuestion: And a table?" == question


async def test_a_custom_prompt(tmp_path: Path) -> None:
    """Tools replace their placeholders, other braces stay, instructions are appended, and schemas can be left out."""
    agent = React(
        system_prompt='{tools}|{tool_names}|{"a": {}}',
        additional_instructions="Be brief.",
        include_tool_input_schema_in_tool_description=False,
    )
    one = dataclasses.replace(SCENARIO, tools=(FIND,), messages=(QUESTION,))
    async with staged(tmp_path, [DONE]) as stage:
        await agent.run(one, stage.llm, stage.tools)
        (request,) = stage.requests

    assert 'find_item: Finds an item.|find_item|{"a": {}} Be brief.' == request["messages"][0]["content"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"system_prompt": "{tools}"}, "system_prompt must contain {tool_names}, which is replaced by the tools"),
        ({"system_prompt": "{tool_names}"}, "system_prompt must contain {tools}, which is replaced by the tools"),
        ({"system_prompt": None}, "system_prompt must be a text, not None"),
        ({"additional_instructions": 5}, "additional_instructions must be a text, not 5"),
        ({"max_tool_calls": 0}, "max_tool_calls must be a whole number from 1 up, not 0"),
        ({"max_history": -1}, "max_history must be a whole number from 0 up, not -1"),
        ({"parse_agent_response_max_retries": True}, "parse_agent_response_max_retries must be a whole number from 0 up, not True"),
        ({"raise_on_parsing_failure": "yes"}, "raise_on_parsing_failure must be true or false, not 'yes'"),
        ({"stop": "Observation:"}, "stop must be a list of texts, not 'Observation:'"),
        ({"stop": [""]}, "stop must be a list of texts that are not empty, not ['']"),
    ],
)
def test_wrong_options(options: dict[str, Any], sentence: str) -> None:
    """An invalid option is refused by its name."""
    with pytest.raises((TypeError, ValueError)) as caught:
        React(**options)

    assert sentence == str(caught.value)
