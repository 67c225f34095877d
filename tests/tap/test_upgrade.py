"""Which calls without streaming are streamed from the backend, and how large bodies are changed."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.tap.peers import CHAT, Message, Tap, agent, answering, backend, request, response, said, text_of, until

ANSWER = (
    b'{"id": "c1", "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],'
    b' "usage": {"prompt_tokens": 3, "completion_tokens": 7},  "own": 1.50}'
)
ADDED = {"stream": True, "stream_options": {"include_usage": True}}
LARGE = {**CHAT, "user": "x" * (3 << 19), "seed": 12345678901234567890, "temperature": 0.1, "emoji": "\N{GRINNING FACE}"}


@pytest.mark.parametrize(
    ("of_token", "headers", "upgraded"),
    [
        (True, "", True),
        (True, "X-Agentbench-Stream-Upgrade: no\r\n", True),
        (False, "", False),
        (False, "X-Agentbench-Stream-Upgrade: yes\r\n", False),
        (None, "", False),
        (None, "X-Agentbench-Stream-Upgrade: yes\r\n", True),
        (None, "X-Agentbench-Stream-Upgrade: 1\r\n", False),
    ],
)
async def test_address_and_header_decide(tap: Tap, of_token: bool | None, headers: str, upgraded: bool) -> None:
    """The rollout's address decides, or else a header of the call, which the backend does not get."""
    id = await tap.open(upgrade=of_token)
    requests: list[Message] = []
    async with backend(answering(said() if upgraded else response(ANSWER), requests=requests)) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        answer = await caller.ask(request(id, headers=headers))
    (call,) = await tap.close(id)

    assert "Hi" == text_of(answer)
    assert ({**CHAT, **ADDED} if upgraded else CHAT) == requests[0].json
    assert "x-agentbench-stream-upgrade" not in requests[0].headers
    assert (upgraded, False, None) == (call.upgraded, call.streamed, call.error_kind)
    assert upgraded == bool(call.chunks)


async def test_calls_without_streaming(tap: Tap) -> None:
    """Without streaming, both bodies are forwarded byte for byte. There are no chunks, and the usage has the tokens."""
    id = await tap.open(upgrade=False)
    requests: list[Message] = []
    body = b'{"model":  "m", "messages": [], "n": 1.50}'
    async with backend(answering(response(ANSWER), requests=requests)) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        answer = await caller.ask(request(id, body=body))
    (call,) = await tap.close(id)

    assert (body, ANSWER) == (requests[0].body, answer.body)
    assert ((), 7, 3, "usage", "stop") == (call.chunks, call.completion_tokens, call.prompt_tokens, call.token_source, call.finish_reason)
    assert "user" == call.stamp


@pytest.mark.parametrize(("streamed", "added"), [(False, ADDED), (True, {"stream_options": {"include_usage": True}})])
async def test_large_bodies(tap: Tap, streamed: bool, added: dict[str, object]) -> None:
    """Large bodies reach the backend with equal values and the additions of the tap, one after the other on a connection."""
    id = await tap.open()
    requests: list[Message] = []
    asked = {**LARGE, "stream": True} if streamed else LARGE
    body = json.dumps(asked).encode()
    async with backend(answering(said(), requests=requests)) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        got = [(await caller.ask(request(id, body=each))).status for each in (body, json.dumps(CHAT).encode(), body)]
    calls = await tap.close(id)

    assert [200] * 3 == got
    assert [{**asked, **added}, {**CHAT, **ADDED}, {**asked, **added}] == [each.json for each in requests]
    assert [(None, streamed, not streamed, "m")] * 2 == [(each.error_kind, each.streamed, each.upgraded, each.model) for each in calls[::2]]
    assert [len(body)] * 2 == [each.request_bytes for each in calls[::2]]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(json.dumps(LARGE).encode()[:-1], id="cut"),
        pytest.param(b"\xff" * (1 << 20), id="no text"),
        pytest.param(b"[" * (1 << 20), id="deep"),
        pytest.param(b'{"a": ' * (1 << 18), id="deep objects"),
        pytest.param(b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b', "b": "' + b"x" * (1 << 20) + b'"}', id="deep, but whole"),
        pytest.param(json.dumps({**LARGE, "stream": True, "stream_options": {"include_usage": True}}).encode(), id="nothing to add"),
    ],
)
async def test_large_bodies_that_stay(tap: Tap, body: bytes) -> None:
    """Large bodies that are unreadable, or need no change, reach the backend byte for byte."""
    id = await tap.open()
    requests: list[Message] = []
    async with backend(answering(response(b"{}", 400), requests=requests)) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        answer = await caller.ask(request(id, body=body))

    assert 400 == answer.status
    assert body == requests[0].body


async def test_an_agent_that_leaves_while_its_body_is_changed(tap: Tap) -> None:
    """If the agent disconnects while its body is changed, nothing is sent, and other calls do not wait."""
    id = await tap.open()
    requests: list[Message] = []
    async with backend(answering(said(), requests=requests)) as url, agent(tap.port) as leaving, agent(tap.port) as caller:
        await tap.point_at(url)
        await leaving.send(request(id, body=json.dumps(LARGE).encode()))
        await until(tap.in_flight, "the call that will be given up")
        leaving.reset()
        await until(tap.is_idle, "its end")
        got = [(await caller.ask(request(id, body=json.dumps(each).encode()))).status for each in (CHAT, LARGE)]
        await asyncio.sleep(0.1)
    kinds = [call.error_kind for call in await tap.close(id)]

    assert [200, 200] == got
    assert ["client_gone", None, None] == kinds
    assert [{**CHAT, **ADDED}, {**LARGE, **ADDED}] == [each.json for each in requests]


async def test_a_rollout_that_ends_while_a_body_is_changed(tap: Tap) -> None:
    """If the rollout ends while a body is changed, the call is aborted and never reaches the backend."""
    id = await tap.open()
    requests: list[Message] = []
    async with backend(answering(said(), requests=requests)) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        await caller.send(request(id, body=json.dumps(LARGE).encode()))
        await until(tap.in_flight, "the call")
        (call,) = await tap.close(id)
        assert b"" == await caller.rest()
        await asyncio.sleep(0.3)

    assert ("client_gone", None) == (call.error_kind, call.sent_ns)
    assert [] == requests
