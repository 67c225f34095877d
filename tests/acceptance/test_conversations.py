"""Requests and replies of agents of all kinds are kept: they are read back with the same bytes, and all agents have a transcript."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest

from pytest_agentbench import Conversations
from pytest_agentbench.records import Json, LLMCall
from tests.plain_agent import PLAIN
from tests.project import Project

SDK = """
async def run(scenario, client, tools, llm):
    messages = [*scenario.messages]
    for turn in range(1, 5):
        answer = await client.chat.completions.create(model=llm.model, messages=messages, tools=tools.schemas, temperature=1e-7)
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            result = await tools.call(call.function.name, call.function.arguments, turn)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
"""

STREAMING = (
    SDK.replace(
        "answer = await client.chat.completions.create(",
        "answer = await streamed(client, stream=True, stream_options={'include_usage': True}, ",
    )
    + """

async def streamed(client, **request):
    from openai.lib.streaming.chat import ChatCompletionStreamState

    state = ChatCompletionStreamState()
    async for chunk in await client.chat.completions.create(**request):
        state.handle_chunk(chunk)
    return state.get_final_completion()
"""
)

JAVASCRIPT = """
const scenario = JSON.parse(require("fs").readFileSync(0, "utf8"));
const tools = scenario.tools.map(({name, description, parameters}) => ({type: "function", function: {name, description, parameters}}));
const messages = scenario.messages;
(async () => {
  for (;;) {
    const answer = await fetch(process.env.OPENAI_BASE_URL + "/chat/completions", {
      method: "POST",
      headers: {"content-type": "application/json", authorization: "Bearer " + process.env.OPENAI_API_KEY},
      body: JSON.stringify({model: scenario.model, messages, tools, note: "Grüße <b> \\u2028 " + 1e-7}),
    });
    const {message} = (await answer.json()).choices[0];
    messages.push(message);
    if (!message.tool_calls) return console.log(message.content);
    for (const call of message.tool_calls) {
      const tool = scenario.tools.find((each) => each.name === call.function.name);
      messages.push({role: "tool", tool_call_id: call.id, content: tool.response});
    }
  }
})();
"""

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="NOT TESTED with JavaScript: node is not installed")


def program(*command: str) -> Json:
    return {"kind": "command", "program": [*command], "own_tools": []}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "file", "text"),
    [
        ({"kind": "tool_calling"}, "", ""),
        ({"kind": "./agent.py:run"}, "agent.py", SDK),
        ({"kind": "./agent.py:run"}, "agent.py", STREAMING),
        (program("python", "agent.py"), "agent.py", PLAIN),
        pytest.param(program("node", "agent.js"), "agent.js", JAVASCRIPT, marks=needs_node),
    ],
    ids=["tool_calling", "openai-sdk", "openai-sdk-streaming", "python", "javascript"],
)
def test_all_calls_are_exact(project: Project, agent: Json, file: str, text: str) -> None:
    """Every request is read back with the bytes that the agent sent, every reply is complete, and the transcript ends with the answer."""
    project.suite(agent=agent)
    if file:
        project.write(f"scenarios/shop/{file}", text)

    project.run("scenarios/shop")

    conversations, rollouts = Conversations(project.directory), project.rollouts
    calls = [call for rollout in rollouts for call in rollout.all_calls]
    assert {True: len(calls)} == Counter(map(conversations.is_exact, calls))
    assert len(calls) >= len(rollouts) > 0
    for rollout in rollouts:
        own = rollout.calls
        assert is_chain([conversations.prompt(call) for call in own])
        assert last_text(conversations, own) == rollout.messages[-1]["content"]
        assert rollout.answer in str(rollout.messages[-1]["content"])
        assert conversations.prompt(own[0])[-1] in [*rollout.messages]
    assert "" not in {rollout.conversation for rollout in rollouts}


def is_chain(prompts: Sequence[Sequence[Json]]) -> bool:
    """Returns whether each prompt begins with all messages of the one before."""
    return all(list(after[: len(before)]) == list(before) for before, after in pairwise(prompts))


def last_text(conversations: Conversations, calls: Sequence[LLMCall]) -> object:
    return conversations.reply_messages(calls[-1])[0]["content"]


@pytest.mark.slow
def test_a_planted_secret(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The value of a secret variable that an agent sends and a model repeats is in no file of the run, and those calls are not exact."""
    secret = "quartz-lantern-4711"
    monkeypatch.setenv("SHOP_API_KEY", secret)
    project.backend(
        [{"match": {"turn": 0}, "tool_calls": [{"name": "find_item", "arguments": {"item": secret}}]}, {"text": f"It is {secret}"}]
    )
    sent = SDK.replace("temperature=1e-7", "temperature=0, user=KEY, extra_body={KEY: {'value': [KEY], 'expected': KEY}}")
    project.suite(agent={"kind": "./agent.py:run"})
    project.write("scenarios/shop/agent.py", f"import os\nKEY = os.environ['SHOP_API_KEY']\n{sent}")

    project.run("scenarios/shop")

    files = [file for file in project.directory.rglob("*") if file.is_file()]
    assert [] == [file.name for file in files if secret in file.read_text(errors="replace")]
    conversations = Conversations(project.directory)
    assert {False} == {conversations.is_exact(call) for rollout in project.rollouts for call in rollout.all_calls}
    assert "[redacted]" in json.dumps([conversations.request(call) for call in project.rollouts[0].calls])


@pytest.mark.slow
def test_calls_of_judges(project: Project) -> None:
    """`calls` keeps only the calls of the agent itself; `all` keeps also those of judges."""
    project.shipped("hle")
    kept = {}
    for level in ("all", "calls"):
        project.run("scenarios/hle", "--agentbench-backend=scenarios/hle/scripted.yaml", f"--agentbench-keep={level}")
        every = [call for rollout in project.rollouts for call in (*rollout.calls, *rollout.other_calls)]
        kept[level] = {call.role: call.kept is not None for call in every}

    assert {"all": {"": True, "judge": True}, "calls": {"": True, "judge": False}} == kept


SEEN = """
def seen(scenario, rollout):
    roles = [message["role"] for message in rollout.messages]
    return float(roles[0] == "user" and "tool" in roles and roles[-1] == "assistant")
"""


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--agentbench-inline",)], ids=["pool", "inline"])
def test_scorers_see_the_conversation_of_every_agent(project: Project, options: Sequence[str]) -> None:
    """Scorers see the requests, results of tools and answers of an agent on the openai SDK, which hands over no transcript of its own."""
    project.suite(agent={"kind": "./agent.py:run"}, scorers=["./scorers.py:seen"], thresholds={})
    project.write("scenarios/shop/agent.py", SDK)
    project.write("scenarios/shop/scorers.py", SEEN)

    project.run("scenarios/shop", *options)

    assert {1.0} == {float(rollout.scores["seen"]) for rollout in project.rollouts}
    assert {""} != {rollout.conversation for rollout in project.rollouts}


OWN_RESULTS = """
def seen(scenario, rollout):
    return float(any(message["role"] == "tool" and message["content"] == "found by the program" for message in rollout.messages))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("printed", "score"), [('message["content"]', 1.0), ("'another answer'", 0.0)], ids=["last-answer", "another"])
def test_results_of_a_programs_own_tools(project: Project, printed: str, score: float) -> None:
    """Scorers and the record have the tool results that a program gave to its model, if the program prints the model's last answer."""
    text = PLAIN.replace('answers[call["function"]["name"]]', '"found by the program"').replace(
        'print(message["content"])', f"print({printed})"
    )
    project.suite(agent=program("python", "agent.py"), scorers=["./scorers.py:seen"], thresholds={})
    project.write("scenarios/shop/agent.py", text)
    project.write("scenarios/shop/scorers.py", OWN_RESULTS)

    project.run("scenarios/shop")

    for rollout in project.rollouts:
        contents = [message["content"] for message in rollout.messages if message["role"] == "tool"]
        assert (score, score == 1.0) == (float(rollout.scores["seen"]), contents == ["found by the program"])


@pytest.mark.slow
def test_judges_do_not_mark_unknown_conversations(project: Project) -> None:
    """Without a kept conversation, a judge gives no mark, and the test is an error that names the option."""
    project.suite(agent={"kind": "./agent.py:run"}, scorers={"completeness": {"judgements": 1}}, thresholds={})
    project.write("scenarios/shop/agent.py", SDK)

    project.run("scenarios/shop", "--agentbench-keep=none")

    errors = [rollout.score_errors["completeness"] for rollout in project.rollouts]
    assert errors
    assert all("--agentbench-keep" in error for error in errors)
