"""Agents on frameworks from the package index: each runs the banking suite as in docs/examples."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
import yaml

from pytest_agentbench.agents.factory import make_agent
from pytest_agentbench.backends.machine.virtual_environments import home_of, is_whole
from pytest_agentbench.cli import main
from pytest_agentbench.lib.process import Child
from pytest_agentbench.llm.client import LLM
from pytest_agentbench.records import Json, Rollout
from pytest_agentbench.runs.conversations import Conversations
from pytest_agentbench.runs.message_file import MessageFile
from pytest_agentbench.suites.suite import Scenario, Tool
from pytest_agentbench.tap.client import TapControl
from pytest_agentbench.tap.protocol import AddressCalls, CloseAddress, KeptReplies, TakeReplies, TapConfig, TapListening
from pytest_agentbench.tools.toolbox import Toolbox
from tests.project import Project
from tests.tap.peers import Message, Tap, answering, backend, response, stream

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
PYTHON = home_of("agents") / "bin" / "python"
LIMIT = 6  # scenarios; without `--agentbench-limit` all hundred run

#: Agents that send the same as the built-in agent: equal messages, the tools with their own schemas, and no prompt that the
#: built-in engine would read.
ALIKE = ("openai_agents", "pydantic_ai_agent", "langgraph_agent", "google_adk_agent")

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not is_whole(home_of("agents")), reason="NOT TESTED with agents of others: agentbench env create agents"),
]


def calls_of(rollout: Rollout) -> list[tuple[str, Json, int]]:
    return [(call.name, call.arguments, call.turn) for call in rollout.tool_calls]


def test_banking(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """All agents except that of smolagents make the same calls as the built-in agent. The calls of smolagents begin with them.

    smolagents asks for a tool call in every turn (`tool_choice: required`) and writes earlier calls into its messages as text. So
    the built-in engine makes calls until the agent has no steps left.
    """
    monkeypatch.chdir(project.root)
    shutil.rmtree("backends")
    main(["init", "banking"])
    suite = project.root / "scenarios" / "banking"
    spec = yaml.safe_load((suite / "suite.yaml").read_text())
    spec["thresholds"] = {"tsq": 0.0}
    spec["variants"] = {
        example.stem: {"agent": {"kind": "command", "program": ["python", example.name], "python": str(PYTHON.parents[1]), **own}}
        for example in EXAMPLES.glob("*.py")
        for own in ({"own_tools": ["final_answer"]} if "smolagents" in example.stem else {},)
    }
    (suite / "suite.yaml").write_text(json.dumps(spec))
    for example in EXAMPLES.glob("*.py"):
        shutil.copy(example, suite)
    no_wait = ["--agentbench-set", "backend.ttft_ms=0", "--agentbench-set", "backend.itl_ms=0", "--agentbench-concurrency", "2"]

    arguments = ["scenarios/banking", "--agentbench-variants=all", f"--agentbench-limit={LIMIT}", *no_wait]
    result = project.pytester.runpytest_subprocess("-p", "no:randomly", *arguments, timeout=560)

    result.assert_outcomes(passed=(1 + len(spec["variants"])) * LIMIT)
    found = {(rollout.variant, rollout.scenario): rollout for rollout in project.rollouts}
    conversations = Conversations(project.directory)
    assert {True} == {conversations.is_exact(call) for rollout in found.values() for call in rollout.all_calls}
    assert {"ok": (1 + len(spec["variants"])) * LIMIT} == Counter(rollout.status for rollout in found.values())
    for (variant, scenario), rollout in found.items():
        expected = found["default", scenario]
        if variant in ALIKE:
            assert calls_of(expected) == calls_of(rollout), variant
            assert expected.scores == rollout.scores, variant
            assert (expected.answer, len(expected.calls)) == (rollout.answer, len(rollout.calls)), variant
        elif variant == "smolagents_agent":
            first = [each for each in calls_of(expected) if each[2] == 1]
            assert first == calls_of(rollout)[: len(first)]
            assert {"final_answer"}.isdisjoint(rollout.tools)


#: Sends one question through each API of the two SDKs, streamed and not, and prints the answer that each returned.
SDKS = """
import json, os
import anthropic, openai

client, claude = openai.OpenAI(max_retries=0), anthropic.Anthropic(max_retries=0)
question = [{"role": "user", "content": "Hello"}]
chat = client.chat.completions.create(model="m", messages=question)
whole = client.responses.create(model="m", input="Hello")
with client.responses.stream(model="m", input="Hello") as events:
    streamed = events.get_final_response()
message = claude.messages.create(model="m", max_tokens=9, messages=question)
with claude.messages.stream(model="m", max_tokens=9, messages=question) as events:
    followed = events.get_final_message()
print(json.dumps([
    chat.choices[0].message.content, whole.output[0].name, streamed.output[0].name, message.content[0].name, followed.content[0].name
]))
"""

CHAT: Json = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
}
ITEM: Json = {"type": "function_call", "id": "fc", "call_id": "c1", "name": "find", "arguments": '{"n":1}', "status": "completed"}
RESPONSE: Json = {
    "id": "r",
    "object": "response",
    "created_at": 1,
    "model": "m",
    "status": "completed",
    "output": [ITEM],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}
USE: Json = {"type": "tool_use", "id": "c1", "name": "find", "input": {"n": 1}}
MESSAGE: Json = {
    "id": "m",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [USE],
    "stop_reason": "tool_use",
    "usage": {"input_tokens": 1, "output_tokens": 9},
}


def named(*events: Json) -> bytes:
    """Returns a streamed answer of an API whose events have names."""
    return stream(*(b"event: %b\ndata: %b\n\n" % (each["type"].encode(), json.dumps(each).encode()) for each in events))


RESPONSE_STREAM = named(
    {"type": "response.created", "sequence_number": 0, "response": {**RESPONSE, "status": "in_progress", "output": []}},
    {"type": "response.output_item.added", "sequence_number": 1, "output_index": 0, "item": {**ITEM, "arguments": ""}},
    {"type": "response.function_call_arguments.delta", "sequence_number": 2, "output_index": 0, "item_id": "fc", "delta": '{"n":1}'},
    {"type": "response.output_item.done", "sequence_number": 3, "output_index": 0, "item": ITEM},
    {"type": "response.completed", "sequence_number": 4, "response": RESPONSE},
)
MESSAGE_STREAM = named(
    {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None}},
    {"type": "content_block_start", "index": 0, "content_block": {**USE, "input": {}}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"n": 1}'}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None}, "usage": {"output_tokens": 9}},
    {"type": "message_stop"},
)


async def test_sdks(tmp_path: Path) -> None:
    """The SDKs of OpenAI and Anthropic find the tap by their own variables. The tap reads the answers of each of their APIs."""
    child = Child("pytest_agentbench.tap", TapConfig("of-the-test"), tmp_path / "tap.log")
    ports = child.ready(TapListening)
    control = await TapControl.connect(ports.control_port, "of-the-test")
    tap = Tap(child, ports, control)
    requests: list[Message] = []
    answers = [
        response(json.dumps(CHAT).encode()),
        response(json.dumps(RESPONSE).encode()),
        RESPONSE_STREAM,
        response(json.dumps(MESSAGE).encode()),
        MESSAGE_STREAM,
    ]
    (tmp_path / "sdks.py").write_text(SDKS)
    try:
        async with backend(answering(*answers, requests=requests)) as url:
            await tap.point_at(url + "/v1", api_key="of-the-backend")
            id = await tap.open(upgrade=None, keep=True, kept="all")

            async def kept() -> list[Json]:
                return [reply.said for reply in (await control.ask(TakeReplies(id), KeptReplies)).replies]

            agent = make_agent({"kind": "command", "program": [str(PYTHON), "sdks.py"]}, tmp_path)
            tools = Toolbox((Tool("find", "", {"type": "object"}),))
            scenario = Scenario("s", ({"role": "user", "content": "Hello"},), (), ())
            answer = await agent.run(scenario, LLM(tap.url(id), "m", said=kept), tools)
            closed, lines = await control.ask_for_body(CloseAddress(id), AddressCalls)
            calls = closed.calls
    finally:
        control.close()
        child.stop()

    assert ["Hi", "find", "find", "find", "find"] == json.loads(answer.text)
    assert [("find", {"n": 1}, turn) for turn in (2, 3, 4, 5)] == [(call.name, call.arguments, call.turn) for call in tools.calls]
    assert ["chat", "responses", "responses", "messages", "messages"] == [call.dialect for call in calls]
    with MessageFile(tmp_path, str) as file:
        file.add(lines.split(b"\n"))
    conversations = Conversations(tmp_path)
    assert [True] * 5 == [conversations.is_exact(call) for call in calls]
    assert [[CHAT["choices"][0]["message"]], [ITEM], [ITEM], [USE], [USE]] == [
        reply[0]["content"] if isinstance(reply[0].get("content"), list) else reply for reply in map(conversations.reply_messages, calls)
    ]
    assert {"Bearer of-the-backend"} == {each.headers["authorization"] for each in requests}
    assert not any("x-api-key" in each.headers for each in requests)
