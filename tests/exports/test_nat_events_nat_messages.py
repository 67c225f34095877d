"""`agentbench export --as nat`: prompts, answers, tool results and trajectories are those that the tap saw, in the toolkit's form."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench import Conversations
from pytest_agentbench.exports.nat_events import KeptMessages, generation, langchain_message, output_text, tool_schema
from pytest_agentbench.records import Json, ToolCall
from pytest_agentbench.runs.message_file import MessageFile
from pytest_agentbench.tap.conversations import ConversationKeeper, KeptBytes
from pytest_agentbench.tap.http_messages import Request
from tests.exports.test_nat_export import exported
from tests.project import TOOLS, Project
from tests.tables.shop import call, rollout
from tests.tap.dialects.conversation import ANSWER as LEAF
from tests.tap.dialects.conversation import FOUND, QUESTION, REPLIES, REQUESTS, THINKING

RESULT = '{"done":true}'
ANSWER = "Here is what was found for you."
CALL = {"name": "find_item", "args": {"item": "lamp"}, "type": "tool_call"}


def files(project: Project, *arguments: str) -> tuple[list[Json], list[Json]]:
    """Runs the shop and exports the run. Returns the requests of the traces, and the entries of workflow_output.json."""
    project.run("scenarios/shop", *arguments)
    (job,) = exported(project.root / "out", project.directory).glob("dynamo_evals/*/jobs/*")
    traces, answers = (json.loads((job / name).read_text()) for name in ("all_requests_profiler_traces.json", "workflow_output.json"))
    return traces, answers


def of_kind(request: Json, kind: str) -> list[Json]:
    """Returns the payloads of the steps of this kind."""
    return [step["payload"] for step in request["intermediate_steps"] if step["payload"]["event_type"] == kind]


def data(request: Json, kind: str, name: str) -> list[Any]:
    return [payload["data"][name] for payload in of_kind(request, kind)]


def talk(messages: Sequence[Json]) -> list[tuple[str, Any]]:
    return [(message["type"], message["content"]) for message in messages]


def test_a_run(project: Project) -> None:
    """Prompts, tools, answers and tool results are those of the requests and replies, and each trajectory has the ends of the calls.

    The requests are in the order of the data set, and the steps of a request in order of time.
    """
    project.suite(scenarios=2)
    traces, answers = files(project)
    conversations, rollouts = Conversations(project.directory), {each.scenario: each for each in project.rollouts}

    assert [0, 1] == [request["request_number"] for request in traces]
    for number, request in enumerate(traces):
        first, second = rollouts[f"shop-{number}"].calls
        prompts = data(request, "LLM_START", "input")
        assert prompts == [payload["metadata"]["chat_inputs"] for payload in of_kind(request, "LLM_START")]
        assert [[each["content"] or "" for each in conversations.prompt(call)] for call in (first, second)] == [
            [content for _, content in talk(prompt)] for prompt in prompts
        ]
        assert ["system", "human", "ai", "tool"] == [kind for kind, _ in talk(prompts[1])]
        assert f"Customer shop-{number}: is there a lamp?" == prompts[0][-1]["content"] == data(request, "WORKFLOW_START", "input")[0]
        assert RESULT == prompts[1][-1]["content"]
        (asked,) = prompts[1][2]["tool_calls"]
        assert CALL == {name: asked[name] for name in CALL}
        assert [tool["title"] for tool in TOOLS] == [
            tool["function"]["name"] for tool in of_kind(request, "LLM_START")[0]["metadata"]["tools_schema"]
        ]
        assert [f"\n\nTool calls: {[asked]}", ANSWER] == data(request, "LLM_END", "output")
        assert [prompt[-1]["content"] for prompt in prompts] == data(request, "LLM_END", "input")
        assert [[asked], []] == [payload["message"]["tool_calls"] for payload in data(request, "LLM_END", "payload")]
        assert ["tool_calls", "stop"] == [payload["generation_info"]["finish_reason"] for payload in data(request, "LLM_END", "payload")]
        assert [{"item": "lamp"}] == data(request, "TOOL_START", "input") == data(request, "TOOL_END", "input")
        assert [RESULT] == data(request, "TOOL_END", "output")
        times = [step["payload"]["event_timestamp"] for step in request["intermediate_steps"]]
        assert times == sorted(times)
        ends = [step for step in request["intermediate_steps"] if step["payload"]["event_type"] in ("LLM_END", "TOOL_END")]
        assert ["LLM_END", "TOOL_END", "LLM_END"] == [step["payload"]["event_type"] for step in ends]
        assert ends == answers[number]["intermediate_steps"]


def test_nothing_kept(project: Project) -> None:
    """Without messages.jsonl, prompts and tools are null. Answers and results are those of the transcript.

    The input of the end of an LLM call is empty then, as in the toolkit, whose evaluators refuse null there.
    """
    project.suite(scenarios=1)
    (request,), (entry,) = files(project, "--agentbench-keep=none")

    assert [None, None] == data(request, "LLM_START", "input")
    assert ["", ""] == data(request, "LLM_END", "input")
    assert [None, None] == [payload["metadata"] for payload in of_kind(request, "LLM_START")]
    assert [ANSWER] == data(request, "LLM_END", "output")[1:]
    assert [RESULT] == data(request, "TOOL_END", "output")
    assert 3 == len(entry["intermediate_steps"])


#: An agent that leaves no transcript, and shows the model less than the tools return.
SHORT = """
async def run(scenario, client, tools, llm):
    messages = [*scenario.messages]
    while True:
        answer = await client.chat.completions.create(model=llm.model, messages=messages, tools=tools.schemas)
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            await tools.call(call.function.name, call.function.arguments, 1)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "found"})
"""


@pytest.mark.parametrize(("keep", "answers", "results"), [("all", 2, ["found"]), ("none", 0, [None])])
def test_an_agent_without_a_transcript(project: Project, keep: str, answers: int, results: list[str | None]) -> None:
    """Results of tools are what the next request has. Without requests and a transcript, nothing is known, and nothing is written."""
    project.suite(scenarios=1, agent={"kind": "./agent.py:run"})
    project.write("scenarios/shop/agent.py", SHORT)
    (request,), _ = files(project, f"--agentbench-keep={keep}")

    assert 2 == len(of_kind(request, "LLM_END"))
    for kind, name in (("LLM_START", "input"), ("LLM_END", "output"), ("LLM_END", "payload")):
        assert answers == sum(value is not None for value in data(request, kind, name))
    assert results == data(request, "TOOL_END", "output")


def test_langchain_messages() -> None:
    """Messages have the form in which the toolkit 1.9.0 writes the messages of langchain-core 1.8.3."""
    common: Json = {"additional_kwargs": {}, "response_metadata": {}, "name": None, "id": None}
    wrong, right = ({"id": id, "type": "function", "function": {"name": "f", "arguments": text}} for id, text in (("1", "{"), ("2", "{}")))

    assert {**common, "type": "human", "content": "Hi.", "name": "Ann"} == langchain_message(
        {"role": "user", "content": "Hi.", "name": "Ann"}
    )
    assert {**common, "type": "system", "content": "Go.", "additional_kwargs": {"__openai_role__": "developer"}} == langchain_message(
        {"role": "developer", "content": "Go."}
    )
    assert {**common, "type": "tool", "content": "3", "tool_call_id": "1", "artifact": None, "status": "success"} == langchain_message(
        {"role": "tool", "content": "3", "tool_call_id": "1"}
    )
    made = langchain_message({"role": "assistant", "content": None, "tool_calls": [wrong, right], "reasoning_content": "Hm."})
    assert {
        **common,
        "type": "ai",
        "content": "",
        "additional_kwargs": {"reasoning_content": "Hm."},
        "tool_calls": [{"name": "f", "args": {}, "id": "2", "type": "tool_call"}],
        "invalid_tool_calls": [{"type": "invalid_tool_call", "id": "1", "name": "f", "args": "{", "error": None}],
        "usage_metadata": None,
    } == made
    assert "\n\nTool calls: [{'name': 'f', 'args': {}, 'id': '2', 'type': 'tool_call'}]" == output_text(made)
    assert {"finish_reason": "stop", "model_name": "m"} == generation(made, call(0, end=1))["generation_info"]


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"properties": {"a": {}}, "required": ["a"]}}},
        {"type": "function", "name": "f", "description": "d", "parameters": {"properties": {"a": {}}, "required": ["a"]}},
        {"name": "f", "description": "d", "input_schema": {"properties": {"a": {}}, "required": ["a"]}},
    ],
    ids=["chat", "responses", "messages"],
)
def test_tools(tool: Json) -> None:
    """Tools of all APIs have the form in which the toolkit 1.9.0 writes them."""
    parameters = {"properties": {"a": {}}, "required": ["a"], "type_": "object", "additionalProperties": False, "strict": True}

    assert {"type": "function", "function": {"name": "f", "description": "d", "parameters": parameters}} == tool_schema(tool)


@pytest.mark.parametrize(
    ("level", "prompt", "result"),
    [("all", ["Be kind. " * 20, "What is tea?", "I look.", "a leaf"], "a leaf"), ("calls", [], "one of many")],
)
def test_the_messages_api(tmp_path: Path, level: str, prompt: list[str], result: str) -> None:
    """The system prompt of the Messages API is the first message. A prompt whose system prompt was not kept is not known.

    The result of a tool is that of the prompt, or else that of the transcript. It belongs to a single call.
    """
    body = {"system": "Be kind. " * 20, "messages": REQUESTS["/messages"]["messages"], "tools": [{"name": "find", "input_schema": {}}]}
    keeper = ConversationKeeper(KeptBytes(), level)
    kept = keeper.call(Request(b"POST", "/messages", [], json.dumps(body).encode()), body, json.dumps(REPLIES["/messages"]).encode())
    with MessageFile(tmp_path, str) as file:
        file.add(keeper.end().split(b"\n"))
    made = (ToolCall("find", {"item": "tea"}, 1), ToolCall("find", {"item": "tea"}, 2))
    calls = (call(0, 100, end=200, dialect="messages", kept=kept),)
    transcript = (QUESTION, THINKING, {**FOUND, "content": "one of many"}, LEAF)
    sent = KeptMessages(tmp_path).of(rollout(calls=calls, tool_calls=made, messages=transcript))

    (only,) = sent.calls.values()
    assert prompt == [message["content"] for message in only.prompt or ()]
    assert (level == "all") == (only.prompt is not None)
    assert LEAF == only.reply
    assert [result, None] == [*sent.results]
