"""Odd text from a model is never an error of the backend, and every reader of the run can handle it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import ThreadingHTTPServer

import orjson
import pytest

from pytest_agentbench.records import Json
from tests.project import Project
from tests.web import QuietHandler, serving

#: Text in JSON -> text in a record.
ODD = {
    r"\ud800": "\ufffd",
    r"\ude00 and \ud83d": "\ufffd and \ufffd",
    r"\ud83d\ude00": "😀",
    r"\u0000\u0001\u001b[31m\u0007\u2028\u200e": "\x00\x01\x1b[31m\x07\u2028\u200e",
    r"\udbff\udfff": "\U0010ffff",
    "\u0301" * 500: "\u0301" * 500,
}


class Server(QuietHandler):
    """First calls find_item with odd arguments, then answers with odd text. Refuses requests that are not valid JSON."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer(200, b'{"object": "list", "data": [{"id": "m", "object": "model"}]}')

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        try:
            messages = orjson.loads(body)["messages"]
            for message in messages:
                for call in message.get("tool_calls") or ():
                    dict(orjson.loads(call["function"]["arguments"]))
        except ValueError as error:
            self.answer(400, json.dumps({"error": {"message": str(error)}}).encode())
            return
        asked = next(message["content"] for message in messages if message["role"] == "user")
        odd = [*ODD][int(asked.partition("shop-")[2].partition(":")[0])]
        said = f'"content": "{odd}!"'
        if len(messages) == 2:
            # Escaping twice is intended: the arguments are JSON inside of JSON.
            arguments = json.dumps(f'{{"item": "{odd}"}}')
            function = f'{{"name": "find_item", "arguments": {arguments}}}'
            said = f'"content": "{odd}", "tool_calls": [{{"id": "c", "type": "function", "function": {function}}}]'
        choice = f'{{"index": 0, "message": {{"role": "assistant", {said}}}, "finish_reason": "stop"}}'
        self.answer(200, f'{{"id": "x", "object": "chat.completion", "model": "m", "choices": [{choice}]}}'.encode())


@pytest.fixture
def url() -> Iterator[str]:
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Server)) as server:
        yield f"http://127.0.0.1:{server.server_port}/v1"


def test_odd_text(project: Project, url: str) -> None:
    """Half an emoji, control characters and the like in answers and arguments are measured and written."""
    project.write("backends/odd.yaml", json.dumps({"kind": "url", "url": url, "model": "m"}))
    project.suite(scenarios=len(ODD), test="def test_it(rollout):\n    assert rollout.answer == '', rollout.answer\n")

    result = project.run("scenarios/shop", "--agentbench-backend=odd", "--junitxml=junit.xml")

    # The tests fail so that the output contains all texts.
    result.assert_outcomes(failed=len(ODD))
    lines = (project.directory / "rollouts.jsonl").read_bytes().splitlines()
    assert [None] * len(ODD) == [orjson.loads(line)["calls"][0]["error_kind"] for line in lines if b'"calls"' in line]
    rollouts = {rollout.scenario: rollout for rollout in project.rollouts}
    for number, text in enumerate(ODD.values()):
        rollout = rollouts[f"shop-{number}"]
        assert ("ok", 1, f"{text}!", 1.0) == (rollout.status, rollout.attempt, rollout.answer, rollout.score("tsq"))
        assert text == rollout.messages[2]["content"]
    assert {} == project.run_json["performance"]["failed_calls"]
    assert (project.directory / "report.md").read_text(encoding="utf-8")


#: Sends the model's output back unchanged, as simple agents do.
PARROT = """
class Parrot:
    async def run(self, scenario, llm, tools):
        call = {"id": "c", "type": "function", "function": {"name": "find_item", "arguments": '{"item": "la'}}
        history = [*scenario.messages, {"role": "assistant", "content": "", "tool_calls": [call]}]
        await llm.chat([*history, {"role": "tool", "tool_call_id": "c", "content": "found"}], tools.schemas)
"""


@pytest.mark.slow
def test_a_history_that_the_server_refuses(project: Project) -> None:
    """A custom agent that sends broken arguments back causes an agent_error. It is attempted once, and the suite goes on."""
    project.suite(scenarios=3, agent={"kind": "./agent.py:Parrot"})
    project.write("scenarios/shop/agent.py", PARROT)

    project.run("scenarios/shop").assert_outcomes(failed=3)

    for rollout in project.rollouts:
        assert ("agent_error", 1, ["bad_history"]) == (rollout.status, rollout.attempt, [call.error_kind for call in rollout.calls])
        assert rollout.reason.startswith("HTTP 400: 'messages[1].tool_calls[0].function.arguments' must be a JSON object.")


@pytest.mark.slow
def test_broken_arguments_are_not_sent_back(project: Project) -> None:
    """If a model's arguments are broken, the built-in agent sends back repaired arguments or none. The record has the original text."""
    written: Json = {"shop-0:": '{"item": "la', "shop-1:": "{'item': 'lamp'}"}
    first = [
        {"match": {"contains": name, "turn": 0}, "tool_calls": [{"name": "find_item", "arguments": text}]} for name, text in written.items()
    ]
    project.backend([*first, {"text": "done"}])
    project.suite(scenarios=2)

    project.run("scenarios/shop").assert_outcomes(passed=2)

    rollouts = {rollout.scenario: rollout for rollout in project.rollouts}
    sent = [rollouts[f"shop-{number}"].messages[2]["tool_calls"][0]["function"]["arguments"] for number in range(2)]
    assert ["{}", '{"item":"lamp"}'] == sent
    assert [*written.values()] == [rollouts[f"shop-{number}"].tool_calls[0].raw for number in range(2)]
    assert ["malformed_arguments", None] == [rollouts[f"shop-{number}"].tool_calls[0].problem for number in range(2)]
