"""The wire protocol between the processes of a session: length-prefixed frames over loopback sockets.

A frame consists of a header, which is a message as JSON, and a body of raw bytes. The first frame of every connection is a `Hello`.
Reading from a closed connection raises an error and never blocks.
"""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Any

from pytest_agentbench.lib import json_text, messages

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

_PREFIX = struct.Struct("!II")  # bytes of the header, bytes of the body
PREFIX = _PREFIX.size  # bytes before the header
MAX_FRAME = 1 << 30  # bytes of a frame at most; larger lengths come from other protocols

Packet = tuple[Any, bytes]  # (JSON of a message, for `Messages.read`; body)


def pack(message: Any, body: bytes = b"") -> bytes:
    """Returns the frame of a message. Values that JSON cannot express, such as a date in a scenario's metadata, become strings."""
    return framed(messages.header(message), body)


def framed(header: Any, body: bytes = b"", dumps: Callable[[Any], bytes] = json_text.dumps_any) -> bytes:
    """Returns a frame with any JSON value as its header. `json_text.dumps` is faster, if all values come from JSON."""
    head = dumps(header)
    return b"".join((_PREFIX.pack(len(head), len(body)), head, body))


def sizes(prefix: bytes, most: int = MAX_FRAME) -> tuple[int, int]:
    """Returns the sizes of header and body from the prefix of a frame. Raises ConnectionError if the frame is larger than `most` bytes."""
    head, body = _PREFIX.unpack(prefix)
    if head + body > most:
        raise ConnectionError(f"a frame of {head + body} bytes exceeds the limit of {most}; the other process does not use this protocol")
    return head, body


def connect(port: int, token: str, role: str, timeout: float | None = 10) -> socket.socket:
    """Connects to a process of this session and sends `Hello`. The time limit applies to connecting; later calls block without limit."""
    connection = socket.create_connection(("127.0.0.1", port), timeout)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.settimeout(None)
    send(connection, messages.Hello(token, role))
    return connection


def send(connection: socket.socket, message: Any, body: bytes = b"") -> None:
    connection.sendall(pack(message, body))


def receive(connection: socket.socket) -> Packet:
    """Returns the next frame. Raises ValueError if its header is not JSON; the connection stays usable, because the frame was read."""
    head, body = sizes(_exactly(connection, _PREFIX.size))
    header, content = _exactly(connection, head), _exactly(connection, body)
    return json_text.loads(header), content


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(min(count - len(parts), 1 << 20))
        if not part:
            raise ConnectionError("the other process closed the connection")
        parts += part
    return bytes(parts)


async def read(reader: asyncio.StreamReader, most: int = MAX_FRAME) -> Packet:
    """Returns the next frame of an asyncio stream, of at most `most` bytes.

    Raises asyncio.IncompleteReadError (an EOFError) if the stream is closed, and ValueError as `receive` does.
    """
    head, body = sizes(await reader.readexactly(_PREFIX.size), most)
    header, content = await reader.readexactly(head), await reader.readexactly(body)
    return json_text.loads(header), content
