"""The texts of answers that the tap keeps for agents that only the tap can observe, and which texts it does not keep."""

from __future__ import annotations

import json

import pytest

from pytest_agentbench.records import Json
from pytest_agentbench.tap.protocol import KeptReplies, TakeReplies
from tests.tap.peers import (
    CHAT,
    DONE,
    LAST_CHUNK,
    OPENING,
    STREAM_HEAD,
    STREAMED,
    Tap,
    agent,
    answering,
    backend,
    chunk,
    event,
    request,
    response,
    said,
    stream,
)

CALL: Json = {"index": 0, "id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"n": 1}'}}
CALLING = stream(event({"role": "assistant", "content": None}), event({"tool_calls": [CALL]}), event({}, "tool_calls"), DONE)
WHOLE = response(
    json.dumps({"choices": [{"index": 0, "message": {"content": None, "tool_calls": [CALL]}, "finish_reason": "tool_calls"}]}).encode()
)
FOUND: Json = {"text": "", "tool_calls": [{"id": "c1", "name": "find", "arguments": '{"n": 1}'}]}


async def texts_of(tap: Tap, id: str) -> list[Json]:
    """Returns the texts without the times."""
    return [each.said for each in (await tap.control.ask(TakeReplies(id), KeptReplies)).replies]


@pytest.mark.parametrize(
    ("upgrade", "body", "answer"),
    [(False, STREAMED, CALLING), (True, None, CALLING), (False, None, WHOLE)],
    ids=["streamed", "upgraded", "whole"],
)
async def test_answers_are_kept(tap: Tap, upgrade: bool, body: bytes | None, answer: bytes) -> None:
    """However an answer is sent, its text is returned once."""
    id = await tap.open(upgrade, keep=True)
    async with backend(answering(answer, said())) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        await caller.ask(request(id, body=body))
        first = await texts_of(tap, id)
        second = await texts_of(tap, id)
    (call,) = await tap.close(id)

    assert ([FOUND], []) == (first, second)
    assert (None, None) == (call.kept, call.error_kind)


async def test_other_agents_texts_are_not_kept(tap: Tap) -> None:
    """The tap keeps no text for an agent that reports its calls itself."""
    id = await tap.open()
    async with backend(answering(CALLING)) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        await caller.ask(request(id))
        assert [] == await texts_of(tap, id)


async def test_a_history_is_not_an_answer(tap: Tap) -> None:
    """A tool call in the history of a later request is not returned again."""
    id = await tap.open(keep=True)
    history = [*CHAT["messages"], {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "c1", "content": "5"}]
    async with backend(answering(CALLING, said("Five."))) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        await caller.ask(request(id))
        await caller.ask(request(id, body=json.dumps({**CHAT, "messages": history}).encode()))

        assert [FOUND, {"text": "Five.", "tool_calls": []}] == await texts_of(tap, id)


async def test_interrupted_answers_have_no_text(tap: Tap) -> None:
    """The text of an interrupted answer is not returned, because a client that retries gets it again."""
    id = await tap.open(keep=True)
    broken = STREAM_HEAD + chunk(OPENING) + chunk(event({"tool_calls": [CALL]})) + LAST_CHUNK
    async with backend(answering(broken, CALLING)) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        await caller.ask(request(id))
        await caller.ask(request(id))

        assert [FOUND] == await texts_of(tap, id)
    assert ["incomplete", None] == [call.error_kind for call in await tap.close(id)]


async def test_calls_in_flight_are_aborted(tap: Tap) -> None:
    """Requesting the texts aborts calls in flight, because their program has ended. The address stays open for the next program."""
    id = await tap.open(keep=True)
    async with backend(answering(STREAM_HEAD + chunk(OPENING), said())) as url, agent(tap.port) as caller, agent(tap.port) as later:
        await tap.point_at(url)
        await caller.send(request(id, body=STREAMED))
        await caller.reader.readuntil(b"Hi")

        assert [] == await texts_of(tap, id)
        assert 200 == (await later.ask(request(id))).status
        assert ["Hi"] == [each["text"] for each in await texts_of(tap, id)]
    assert ["client_gone", None] == [call.error_kind for call in await tap.close(id)]
