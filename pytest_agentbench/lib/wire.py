"""How processes of one session talk: length-prefixed frames over loopback sockets, a JSON header and a raw body.

The first frame of every connection carries the session's token. A closed connection raises `ConnectionError`; it never hangs.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

_PREFIX = struct.Struct("!II")  # bytes of the header, bytes of the body
MAX_FRAME = 1 << 30  # bytes; anything larger is not one of ours

Frame = tuple[dict[str, Any], bytes]


def pack(header: dict[str, Any], body: bytes = b"") -> bytes:
    return framed(json.dumps(header, separators=(",", ":")).encode(), body)


def framed(head: bytes, body: bytes = b"") -> bytes:
    """A frame whose header is written already."""
    return b"".join((_PREFIX.pack(len(head), len(body)), head, body))


def sizes(prefix: bytes, most: int = MAX_FRAME) -> tuple[int, int]:
    """Bytes of header and body; raises ConnectionError for what cannot be a frame of ours, or is larger than it may be."""
    head, body = _PREFIX.unpack(prefix)
    if head + body > most:
        raise ConnectionError(f"a frame of {head + body} bytes is not one of ours")
    return head, body


def connect(port: int, token: str, role: str, timeout: float | None = 10) -> socket.socket:
    """A socket to a process of this session, introduced with its token and role; blocks without a limit afterwards."""
    connection = socket.create_connection(("127.0.0.1", port), timeout)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.settimeout(None)
    send(connection, {"token": token, "role": role})
    return connection


def send(connection: socket.socket, header: dict[str, Any], body: bytes = b"") -> None:
    connection.sendall(pack(header, body))


def receive(connection: socket.socket) -> Frame:
    head, body = sizes(_exactly(connection, _PREFIX.size))
    return json.loads(_exactly(connection, head)), _exactly(connection, body)


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(min(count - len(parts), 1 << 20))
        if not part:
            raise ConnectionError("the other process closed the connection")
        parts += part
    return bytes(parts)


async def read(reader: asyncio.StreamReader, most: int = MAX_FRAME) -> Frame:
    """The next frame of an asyncio stream, of `most` bytes; raises asyncio.IncompleteReadError (an EOFError) when it is closed."""
    head, body = sizes(await reader.readexactly(_PREFIX.size), most)
    return json.loads(await reader.readexactly(head)), await reader.readexactly(body)
