"""Frames between the processes of a session."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.lib import wire
from pytest_agentbench.lib.wire import Hello, header

#: Any JSON value except NaN, which does not equal itself, infinite numbers, and integers beyond 64 bits, which are read as floats.
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
FRAMES = st.lists(st.tuples(st.dictionaries(st.text(), JSON, max_size=4), st.binary(max_size=300)), max_size=4)


@contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yields two connected sockets. A read of an incomplete frame fails after a minute instead of hanging."""
    near, far = socket.socketpair()
    with near, far:
        near.settimeout(60)
        far.settimeout(60)
        yield near, far


def pieces(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    """Returns `data` in order, split at the given places."""
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return (data[start:end] for start, end in itertools.pairwise(places))


async def fed(parts: Iterator[bytes], count: int) -> list[wire.Packet]:
    """Returns this many frames from a stream that arrives in parts and then ends."""
    reader = asyncio.StreamReader()

    async def collect() -> list[wire.Packet]:
        return [await wire.read(reader) for _ in range(count)]

    collecting = asyncio.create_task(collect())
    for part in parts:
        reader.feed_data(part)
        await asyncio.sleep(0)
    reader.feed_eof()
    return await collecting


@given(FRAMES, st.lists(st.integers(min_value=0), max_size=8))
def test_frames_survive_any_cuts(frames: list[wire.Packet], cuts: list[int]) -> None:
    """The same frames are read however the stream is split into packets, with blocking sockets and with asyncio."""
    data = b"".join(wire.framed(*frame) for frame in frames)

    with pair() as (near, far):
        for piece in pieces(data, cuts):
            near.sendall(piece)
        received = [wire.receive(far) for _ in frames]

    assert frames == received
    assert frames == asyncio.run(fed(pieces(data, cuts), len(frames)))


def test_a_frame_without_a_body() -> None:
    """A frame that consists only of a header has an empty body."""
    with pair() as (near, far):
        wire.send(near, Hello("t", "test"))

        assert (header(Hello("t", "test")), b"") == wire.receive(far)


def test_big_frames() -> None:
    """A header and a body of several megabytes arrive complete, although they exceed all buffers."""
    keys: dict[str, Any] = {"keys": [["banking", f"banking-{number}", "default", 1] for number in range(20_000)]}
    body = bytes(range(256)) * 20_000

    with pair() as (near, far):
        sending = threading.Thread(target=near.sendall, args=(wire.framed(keys, body),))
        sending.start()
        received = wire.receive(far)
        sending.join()

    assert (keys, body) == received


@pytest.mark.parametrize("sent", [0, 3, 8, 12, -1])
def test_a_closed_connection_is_an_error(sent: int) -> None:
    """A connection that closes before, within or between the parts of a frame raises an error and does not hang."""
    data = wire.framed({"op": "finish"}, b"body")
    with pair() as (near, far):
        near.sendall(data[:sent])
        near.close()

        with pytest.raises(ConnectionError, match="the other process closed the connection"):
            wire.receive(far)

    with pytest.raises(EOFError):
        asyncio.run(fed_once(data[:sent]))


async def fed_once(data: bytes) -> wire.Packet:
    """Reads the first frame of a stream that ends after `data`."""
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return await wire.read(reader)


def test_what_is_not_a_frame() -> None:
    """A prefix with too large a size is refused before anything more is read."""
    assert (1, wire.MAX_FRAME - 1) == wire.sizes(struct.pack("!II", 1, wire.MAX_FRAME - 1))
    with pytest.raises(ConnectionError, match=r"^a frame of 1195725856 bytes exceeds the limit of "):
        wire.sizes(b"GET " + struct.pack("!I", 0))


def test_an_invalid_header() -> None:
    """A header that is not JSON is an error for its own frame only. The next frame is read correctly."""
    data = struct.pack("!II", 1, 4) + b"{body" + wire.framed(["next"])
    with pair() as (near, far):
        near.sendall(data)
        with pytest.raises(ValueError, match="Expecting"):
            wire.receive(far)

        assert (["next"], b"") == wire.receive(far)

    async def read_both() -> wire.Packet:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        with pytest.raises(ValueError, match="Expecting"):
            await wire.read(reader)
        return await wire.read(reader)

    assert (["next"], b"") == asyncio.run(read_both())


def test_connect_introduces_itself() -> None:
    """The first frame of a connection is a Hello with its token and role. Afterwards the connection blocks without a time limit."""
    with socket.create_server(("127.0.0.1", 0)) as server, wire.connect(server.getsockname()[1], "secret", "test") as connection:
        accepted, _ = server.accept()
        with accepted:
            accepted.settimeout(60)

            assert (header(Hello("secret", "test")), b"") == wire.receive(accepted)
            assert connection.gettimeout() is None


def test_a_port_without_a_listener() -> None:
    """Connecting to a port without a listener raises ConnectionError."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    with pytest.raises(ConnectionError):
        wire.connect(port, "secret", "test")


def test_headers_are_plain_json() -> None:
    """A frame consists of two lengths in network byte order, the header as JSON, and the body unchanged."""
    frame = wire.framed({"op": "plan"}, b"\x00\xff")

    assert (13, 2) == struct.unpack("!II", frame[:8])
    assert {"op": "plan"} == json.loads(frame[8:21])
    assert b"\x00\xff" == frame[21:]
