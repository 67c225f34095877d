"""Requests and replies that the tap keeps, read back from messages.jsonl as agents sent them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from pytest_agentbench.lib.kept_values import STYLES
from pytest_agentbench.lib.redact import Redactor
from pytest_agentbench.records import Json, KeptCall, LLMCall
from pytest_agentbench.runs.conversations import Conversations, NotKept
from pytest_agentbench.runs.message_file import MessageFile
from pytest_agentbench.tap import conversations
from pytest_agentbench.tap.conversations import ConversationKeeper, KeptBytes
from pytest_agentbench.tap.http_messages import Request
from pytest_agentbench.tap.protocol import AddressCalls, CloseAddress
from tests.tap.peers import CHAT, Tap, agent, answering, backend, request, response, said

TOOLS = [{"type": "function", "function": {"name": "find", "description": "Finds a thing. " + "x" * 200, "parameters": {"type": "object"}}}]
HISTORY = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "And <now>? Grüße"}]
REFUSAL = response(b'{"error": {"message": "no such model"}}', status=404)


def write(folder: Path, lines: bytes, redact: Callable[[str], str] = str) -> Mapping[str, str]:
    """Writes lines of the tap to messages.jsonl. Returns the ids that redaction changed."""
    with MessageFile(folder, redact) as file:
        return file.add(lines.split(b"\n"))


async def read_back(tap: Tap, id: str, folder: Path) -> tuple[list[LLMCall], Conversations]:
    """Closes an address. Returns its calls, and messages.jsonl with what they refer to."""
    answer, body = await tap.control.ask_for_body(CloseAddress(id), AddressCalls)
    write(folder, body)
    return [*answer.calls], Conversations(folder)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("upgrade", [True, False])
async def test_a_conversation(tap: Tap, tmp_path: Path, style: str, upgrade: bool) -> None:
    """Each request of a conversation can be written as it was sent, and the replies are complete, whether they were streamed or not."""
    bodies = [STYLES[style]({"model": "m", "messages": HISTORY[:count], "tools": TOOLS, "temperature": 0.5}) for count in (1, 3)]
    id = await tap.open(upgrade, kept="all")
    async with backend(answering(said("Hi"), said("Later"))) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        for body in bodies:
            await caller.ask(request(id, body=body))
        calls, messages = await read_back(tap, id, tmp_path)

    assert [HISTORY[:1], HISTORY] == [messages.prompt(call) for call in calls]
    assert bodies == [messages.body(call) for call in calls]
    assert [True, True] == [messages.is_exact(call) for call in calls]
    assert ["Hi", "Later"] == [messages.reply(call)["choices"][0]["message"]["content"] for call in calls]
    assert TOOLS == messages.form(calls[1])["parts"]["tools"]
    assert 1 == (tmp_path / "messages.jsonl").read_text().count("Finds a thing.")


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/responses", {"model": "m", "input": "Hello, how are you?", "instructions": "Be brief. " * 30}),
        ("/responses", {"model": "m", "input": [{"role": "user", "content": "Hello"}], "previous_response_id": "resp_1"}),
        ("/messages", {"model": "m", "max_tokens": 9, "system": [{"type": "text", "text": "Be brief." * 30}], "messages": HISTORY}),
        ("/completions", {"model": "m", "prompt": "Once upon a time"}),
        ("/completions", {"model": "m", "prompt": [1, 2, 3]}),
        ("/chat/completions", {"model": "m", "messages": []}),
        ("/chat/completions", {"messages": "none"}),
    ],
)
async def test_requests_of_all_apis(tap: Tap, tmp_path: Path, route: str, body: Json) -> None:
    """The request of any API is read back with the same bytes, even if the backend refuses it; the refusal is the reply."""
    id = await tap.open(kept="all")
    async with backend(answering(REFUSAL)) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        await caller.ask(request(id, path=route, body=json.dumps(body).encode()))
        (call,), messages = await read_back(tap, id, tmp_path)

    assert (json.dumps(body).encode(), True) == (messages.body(call), messages.is_exact(call))
    assert (404, {"error": {"message": "no such model"}}) == (call.http_status, messages.reply(call))


@pytest.mark.parametrize("body", [b"not JSON", b'{ "messages" : [ ] }', b'{"messages":[{"a":12345678901234567890123}]}', b"\xff\xfe"])
async def test_odd_bodies(tap: Tap, tmp_path: Path, body: bytes) -> None:
    """A body that no known client writes is kept as far as possible, and only those with equal bytes are called exact."""
    id = await tap.open(kept="all")
    async with backend(answering(REFUSAL)) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        await caller.ask(request(id, body=body))
        (call,), messages = await read_back(tap, id, tmp_path)

    assert messages.is_exact(call) is (messages.body(call) == body)
    assert messages.is_exact(call) is (not body.startswith(b"{"))


async def test_without_tools(tap: Tap, tmp_path: Path) -> None:
    """`calls` keeps messages and replies, but no tools, so its requests are not exact."""
    id = await tap.open(kept="calls")
    async with backend(answering(said())) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        await caller.ask(request(id, body=orjson.dumps({**CHAT, "tools": TOOLS})))
        (call,), messages = await read_back(tap, id, tmp_path)

    assert (CHAT["messages"], {}, False) == (messages.prompt(call), messages.form(call)["parts"], messages.is_exact(call))


async def test_nothing_is_kept_unasked(tap: Tap) -> None:
    """Without `kept`, a call has no ids and the tap returns no lines."""
    id = await tap.open()
    async with backend(answering(said())) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        await caller.ask(request(id))
        answer, body = await tap.control.ask_for_body(CloseAddress(id), AddressCalls)

    assert (None, b"") == (answer.calls[0].kept, body)


async def test_headers(tap: Tap, tmp_path: Path) -> None:
    """Only headers that are needed to send a request again are kept."""
    id = await tap.open(kept="all")
    sent = [(b"Anthropic-Beta", b"tools-1"), (b"Cookie", b"c=1"), (b"X-Api-Key", b"hush-hush")]
    keeper = ConversationKeeper(KeptBytes())
    keeper.call(Request(b"POST", "/messages?beta=true", sent, b"{}"), None, b"")
    await tap.close(id)

    (line,) = keeper.end().split(b"\n")
    assert {"path": "/messages?beta=true", "headers": {"anthropic-beta": "tools-1"}, "written": "orjson", "body": {}, "parts": {}} == (
        orjson.loads(line)["value"]
    )


def keep(keeper: ConversationKeeper, **body: Any) -> KeptCall:
    return keeper.call(Request(b"POST", "/chat/completions", [], orjson.dumps(body)), body, b"")


def test_the_limit(tmp_path: Path) -> None:
    """A tap that keeps too much keeps nothing more, says so, and keeps again when addresses were closed."""
    kept = KeptBytes(most=1000)
    first, second = ConversationKeeper(kept), ConversationKeeper(kept)

    assert "" == keep(first, messages=[{"role": "user", "content": "x" * 1000}]).missing
    assert KeptCall(missing="limit") == keep(second, messages=HISTORY)
    first.end()
    assert "" == keep(second, messages=HISTORY).missing
    second.end()
    assert 0 == kept.now


def test_a_large_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a value that is too large, only the size is kept. The request says so when it is read."""
    monkeypatch.setattr(conversations, "LARGEST_VALUE", 1000)
    keeper = ConversationKeeper(KeptBytes())
    call = LLMCall(0, 0, 1, kept=keep(keeper, messages=[{"role": "user", "content": "x" * 1000}]))
    write(tmp_path, keeper.end())

    with pytest.raises(NotKept, match="too large to be kept: 1,028 bytes"):
        Conversations(tmp_path).prompt(call)
    assert not Conversations(tmp_path).is_exact(call)


def test_growth() -> None:
    """The size of a conversation grows with its turns, not with the sizes of its requests: twice the turns need twice the bytes."""
    sizes = []
    for turns in (20, 40):
        keeper, history = ConversationKeeper(KeptBytes()), []
        for turn in range(turns):
            history.append({"role": "user", "content": f"{turn:04}" + "x" * 996})
            keep(keeper, messages=[*history])
        sizes.append(len(keeper.end()))

    assert pytest.approx(2, abs=0.05) == sizes[1] / sizes[0]


def test_growth_of_a_text_prompt(tmp_path: Path) -> None:
    """A text prompt that continues the one before it is kept in pieces, and read back as one text."""
    keeper = ConversationKeeper(KeptBytes())
    prompts: list[str] = []
    calls = []
    for turn in range(20):
        prompts.append("".join(prompts[-1:]) + f"{turn:04}" + "x" * 996)
        body = {"prompt": prompts[-1]}
        sent = orjson.dumps(body)
        calls.append(LLMCall(0, 0, 1, kept=keeper.call(Request(b"POST", "/completions", [], sent), body, b"")))
    lines = keeper.end()
    write(tmp_path, lines)

    assert len(lines) < 30_000
    assert prompts == [orjson.loads(Conversations(tmp_path).body(call))["prompt"] for call in calls]


SECRET = "tr0ub4dor-and-3"
PLACES: Json = {
    "model": SECRET,
    "messages": [
        {"role": SECRET, "content": f"it is {SECRET}", "name": SECRET, "id": SECRET, "kind": SECRET, "schema": {"name": SECRET}},
        {"role": "user", "content": "x", "expected": SECRET, "chunks": [SECRET], "arguments": json.dumps({"a": json.dumps({"b": SECRET})})},
        {SECRET: 1, "password": SECRET, "nested": [{"suite": [SECRET]}]},
    ],
    "tools": [{"type": "function", "function": {"name": SECRET, "description": "x" * 200, "parameters": {"properties": {SECRET: {}}}}}],
    "metadata": {"user_id": SECRET},
    "stop": [SECRET],
}


def test_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The value of a secret variable is nowhere in the file, wherever a request or a reply has it. The request is then not exact."""
    monkeypatch.setenv("DEPLOY_TOKEN", SECRET)
    keeper = ConversationKeeper(KeptBytes())
    sent = Request(b"POST", f"/chat/completions?key={SECRET}", [(b"accept", SECRET.encode())], orjson.dumps(PLACES))
    kept = keeper.call(sent, PLACES, orjson.dumps({"choices": [{"message": {"content": SECRET}, "finish_reason": SECRET}]}))
    clean = keep(keeper, messages=HISTORY)
    changed = write(tmp_path, keeper.end(), Redactor())
    written = KeptCall(*(changed.get(id, id) for id in (kept.request, kept.prompt, kept.reply)))
    messages, call = Conversations(tmp_path), LLMCall(0, 0, 1, kept=written, request_crc=0)

    assert SECRET not in (tmp_path / "messages.jsonl").read_text()
    assert os.environ["DEPLOY_TOKEN"] == SECRET
    assert "it is [redacted]" == messages.prompt(call)[0]["content"]
    assert not messages.is_exact(call)
    assert HISTORY == messages.prompt(LLMCall(0, 0, 1, kept=clean))
    assert {kept.request, kept.prompt, kept.reply} <= changed.keys()
    assert not changed.keys() & {clean.request, clean.prompt}
