"""Chunked bodies of backends: the fast path for reads that are exactly one chunk, and the parser for all others."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.tap.upstream import whole_chunk
from tests.tap.peers import DONE, LAST_CHUNK, OPENING, STREAM_HEAD, STREAMED, Tap, agent, backend, chunk, event, read_message, request

EVENTS = [OPENING, event({"content": "5\r\nhello\r\n0\r\n\r\n"}), event({}, "stop"), DONE]


def as_chunk(data: bytes) -> bytes | None:
    """Returns the content of exactly one chunk by the grammar of RFC 9112, 7.1, or None for anything else and the last chunk."""
    digits = 0
    while data[digits : digits + 1] and data[digits] in b"0123456789abcdefABCDEF":
        digits += 1
    size = sum(int(chr(digit), 16) << 4 * place for place, digit in enumerate(reversed(data[:digits])))
    is_one = digits and size and data[digits : digits + 2] == b"\r\n" and data[digits + 2 + size :] == b"\r\n"
    return data[digits + 2 : -2] if is_one else None


@given(body=st.binary(min_size=1, max_size=300), upper=st.booleans(), zeros=st.integers(0, 3))
def test_one_chunk(body: bytes, upper: bool, zeros: int) -> None:
    """The fast path reads any body, with its size in upper or lower case and with leading zeros."""
    size = b"0" * zeros + (b"%X" if upper else b"%x") % len(body)

    assert body == whole_chunk(size + b"\r\n" + body + b"\r\n")


@given(st.lists(st.sampled_from([b"0", b"1", b"5", b"a", b"F", b"x", b"_", b"+", b" ", b";e=1", b"\r\n", b"\r", b"\n", b"hello"])))
def test_the_fast_path_agrees_with_the_grammar(pieces: list[bytes]) -> None:
    """The fast path reads a chunk from any data if and only if a parser of the grammar does."""
    data = b"".join(pieces)

    assert as_chunk(data) == whole_chunk(data)


@pytest.mark.parametrize(
    "data", [b"", LAST_CHUNK, b"00\r\n\r\n", b"0x5\r\nhello\r\n", b"5;a=b\r\nhello\r\n", b"1\r\na\r\n" * 2, b"5\r\nhell\r\n"]
)
def test_data_that_is_not_one_chunk(data: bytes) -> None:
    """The fast path finds no chunk in data that is not exactly one chunk."""
    assert whole_chunk(data) is None


WRITTEN = {
    "plain": b"".join(map(chunk, EVENTS)) + LAST_CHUNK,
    "extensions": b"".join(b'%x;a=b;c="d"\r\n%b\r\n' % (len(each), each) for each in EVENTS) + LAST_CHUNK,
    "upper case": b"".join(b"00%X\r\n%b\r\n" % (len(each), each) for each in EVENTS) + b"000\r\n\r\n",
    "trailers": b"".join(map(chunk, EVENTS)) + b"0\r\nx-trailer: 1\r\n\r\n",
}


@pytest.mark.parametrize("way", WRITTEN)
async def test_cuts_at_every_place(tap: Tap, way: str) -> None:
    """A stream that arrives in two or three pieces, split anywhere, reaches the agent byte for byte, and connections are kept."""
    id, written, connections = await tap.open(), WRITTEN[way], 0
    cuts = [(0, place, min(place + 7, len(written)), len(written)) for place in range(1, len(written), 5)]

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        for marks in cuts:
            await read_message(reader)
            writer.write(STREAM_HEAD)
            for start, end in pairwise(marks):
                await asyncio.sleep(0.001)
                writer.write(written[start:end])

    async with backend(handle) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        got = [(await caller.ask(request(id, body=STREAMED))).body for _ in cuts]
    calls = await tap.close(id)

    assert {b"".join(EVENTS)} == set(got)
    assert {None} == {call.error_kind for call in calls}
    assert 1 == connections


async def test_an_invalid_size(tap: Tap) -> None:
    """An invalid size is a fault, also between two chunks."""
    id = await tap.open()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(STREAM_HEAD + chunk(OPENING))
        await asyncio.sleep(0.05)
        last = event({}, "stop")
        writer.write(b"0x%x\r\n%b\r\n" % (len(last), last))
        await reader.read()

    async with backend(handle) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        await caller.send(request(id, body=STREAMED))
        await caller.rest()
    (call,) = await tap.close(id)

    assert "cut" == call.error_kind
    assert "not HTTP" in call.error
