"""An agent that did not request the usage of a stream does not get it, although the tap did."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.tap.stream import WithoutUsage
from tests.tap.peers import (
    CHAT,
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    STREAMED,
    Message,
    Tap,
    agent,
    answering,
    backend,
    chunk,
    chunks,
    event,
    read_message,
    request,
    response,
    stream,
)

USAGE = {"prompt_tokens": 3, "completion_tokens": 7}
ONLY_USAGE = event(usage=USAGE)
WORDS = [event({"role": "assistant", "content": ""}), event({"content": 'the "usage"'}), event({}, "stop", usage=USAGE)]
ASKED = json.dumps({**CHAT, "stream": True, "stream_options": {"include_usage": True}}).encode()

HIDDEN = [ONLY_USAGE, b'data:{"usage":{},"choices":[]}\n\n', b'data: {"choices": [], "usage": {"completion_tokens": 1}} \n\n']
KEPT = [
    *WORDS,
    DONE,
    b": a comment\n\n",
    b'data: {"choices": [], "usage": null}\n\n',
    b'data: {"choices": [], "prompt_filter_results": []}\n\n',
    b'data: {"usage": 5\n\n',
    b'event: x\ndata: {"id": "usage"}\n\n',
    "data: \N{GRINNING FACE}\u2028\n\n".encode(),
]
PIECES = st.sampled_from([*((each, True) for each in HIDDEN), *((each, False) for each in KEPT)])


def cut_at(data: bytes, places: list[int]) -> list[bytes]:
    marks = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(marks)]


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
@given(pieces=st.lists(PIECES), tail=st.sampled_from([b"", b"data: {", b"data: {}\n"]), places=st.lists(st.integers(0, 5000)))
def test_any_stream_cut_anywhere(line_end: bytes, pieces: list[tuple[bytes, bool]], tail: bytes, places: list[int]) -> None:
    """The output equals the input without the events that have only usage."""
    written = b"".join([*(piece for piece, _ in pieces), tail]).replace(b"\n", line_end)
    expected = b"".join([*(piece for piece, hidden in pieces if not hidden), tail]).replace(b"\n", line_end)
    without = WithoutUsage()
    got = b"".join(map(without.feed, cut_at(written, places)))

    assert expected == got + without.rest()
    assert b"" == without.rest()


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
@given(events=st.lists(st.sampled_from([*WORDS, DONE, b": a comment\n\n"])))
def test_nothing_waits_at_the_end_of_an_event(line_end: bytes, events: list[bytes]) -> None:
    """A complete event is forwarded at once."""
    without = WithoutUsage()
    for each in events:
        written = each.replace(b"\n", line_end)
        assert written == without.feed(written)


def test_streams_of_bare_carriage_returns() -> None:
    """Streams with CR as line end are forwarded unchanged."""
    without = WithoutUsage()
    data = (b"".join(WORDS) + ONLY_USAGE).replace(b"\n", b"\r")

    assert data == without.feed(data) + without.rest()


@pytest.mark.parametrize(
    ("body", "shown"), [(STREAMED, False), (ASKED, True), (ASKED.replace(b"true}", b"false}"), False)], ids=["silent", "asked", "declined"]
)
@pytest.mark.parametrize("framing", ["chunked", "content-length"])
async def test_agents(tap: Tap, body: bytes, shown: bool, framing: str) -> None:
    """The tap reads the usage of each stream. The agent sees it only if it requested it."""
    id = await tap.open()
    requests: list[Message] = []
    events = [*WORDS, ONLY_USAGE, DONE]
    whole = stream(*events) if framing == "chunked" else response(b"".join(events), headers="content-type: text/event-stream\r\n")
    async with backend(answering(whole, requests=requests)) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        got = [await caller.ask(request(id, body=body)) for _ in range(2)]
    calls = await tap.close(id)

    assert [b"".join([*WORDS, *([ONLY_USAGE] if shown else []), DONE])] * 2 == [each.body for each in got]
    assert [True] * 2 == [each.json["stream_options"]["include_usage"] for each in requests]
    assert [(None, 7, 3, "usage", True)] * 2 == [
        (call.error_kind, call.completion_tokens, call.prompt_tokens, call.token_source, call.streamed) for call in calls
    ]
    assert ["role", "content", "finish", "usage"] == [each.kind for each in calls[0].chunks]


async def test_events_one_by_one(tap: Tap) -> None:
    """Each event reaches the agent before the backend sends the next one, before and after the usage."""
    id = await tap.open()
    go = asyncio.Semaphore(0)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(STREAM_HEAD)
        for each in (*WORDS, ONLY_USAGE + WORDS[1], DONE):
            await go.acquire()
            writer.write(chunk(each))
        writer.write(LAST_CHUNK)

    async with backend(handle) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        await caller.send(request(id, body=STREAMED))
        await caller.reader.readuntil(b"\r\n\r\n")
        pieces = chunks(caller.reader)
        for each in (*WORDS, WORDS[1], DONE):
            go.release()
            async with asyncio.timeout(20):
                assert each == await anext(pieces)


async def test_a_whole_answer_is_not_a_stream(tap: Tap) -> None:
    """If a backend does not stream although requested, its answer is forwarded completely, including its usage."""
    id = await tap.open()
    body = json.dumps({"choices": [], "usage": USAGE}, indent=1).encode() + b"\n\n"
    async with backend(answering(response(body))) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        answer = await caller.ask(request(id, body=STREAMED))

    assert body == answer.body
