"""The wire protocol between the processes of a session: messages, their frames on sockets, and the streams of child processes.

Messages are frozen dataclasses, identified by the names of their classes. A protocol module contains the messages of one connection.
For each direction, it defines the union of the possible messages, and the object that reads them: `FromPool = Begun | Failed` and
`FROM_POOL: Messages[FromPool] = Messages(FromPool)`.

A frame consists of a header, which is a message as JSON, and a body of raw bytes. Frames are sent over loopback sockets. The first frame
of every connection is a `Hello`. Reading from a closed connection raises an error and never blocks.

A child process reads its configuration as one JSON line from stdin, writes one JSON line when it is ready, and ends when stdin closes.
Each process raises its own limit of open files as far as the system allows.
"""

from __future__ import annotations

import ctypes
import json
import os
import reprlib
import resource
import socket
import struct
import sys
import typing
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib import codec, json_text
from pytest_agentbench.lib.record_fields import is_union

if TYPE_CHECKING:
    import asyncio
    import signal
    from collections.abc import Callable


Message = TypeVar("Message")

#: The version of all protocols. It is incremented with each change of a message, so that processes of different versions refuse each other.
PROTOCOL = 1


@dataclass(frozen=True)
class Hello:
    """The first message of a connection to a process of a session. It contains the session's token.

    If the token is wrong, the receiver closes the connection without an answer. If the protocol version differs, it answers with
    `Refused`. In all versions the message is called `Hello` and has the fields `token` and `protocol`.
    """

    token: str = field(repr=False)
    role: str  # role of the sender: `controller`, `pool` or `test`
    protocol: int = PROTOCOL


@dataclass(frozen=True)
class Listening:
    """The first line that a server process writes to stdout. It accepts connections on this port."""

    port: int  # port on 127.0.0.1


@dataclass(frozen=True)
class Refused:
    """The last message to a process with another protocol version, before the connection is closed. `Messages.read` raises OtherVersion."""

    reason: str


class OtherVersion(ConnectionError):
    """The other process has another protocol version. Retrying cannot help."""


def refusal(protocol: object) -> str:
    """Returns the reason for refusing a process with this protocol version, or an empty text for the current version."""
    if protocol == PROTOCOL:
        return ""
    return f"a process speaks protocol {protocol}, and this one protocol {PROTOCOL}: both need the same version of pytest-agentbench"


def header(message: Any) -> Any:
    """Converts a message to JSON: a list of the name of its class, and its fields."""
    return [type(message).__name__, codec.plain(message)]


class Messages(Generic[Message]):
    """Reads the messages of one direction of a connection."""

    def __init__(self, kinds: Any) -> None:
        """`kinds` is the union of the message classes, or a single class."""
        members = typing.get_args(kinds) if is_union(kinds) else (kinds,)
        self.kinds: Mapping[str, type[Any]] = {kind.__name__: kind for kind in (*members, Refused)}

    def read(self, header: Any) -> Message:
        """Converts JSON to a message. Raises ValueError if it is unknown or damaged, and OtherVersion if it is `Refused`."""
        if header.__class__ is not list or len(header) != 2 or header[0].__class__ is not str:
            raise ValueError(f"{reprlib.repr(header)} is not a message")
        name, fields = header
        if name not in self.kinds:
            raise ValueError(f"the message {name[:100]!r} is unknown; known are: {', '.join(self.kinds)}")
        message = codec.received(self.kinds[name], fields)
        if isinstance(message, Refused):
            raise OtherVersion(message.reason)
        return message  # type: ignore[no-any-return]  # The classes come from a union, which mypy sees as a value.


LOG = "AGENTBENCH_LOG"  # environment variable of child processes: path of the file that gets their stderr

PR_SET_PDEATHSIG = 1  # option of prctl(2)


Config = TypeVar("Config")


def read_line() -> Any:
    """Reads the configuration of this process, the JSON in the first line of stdin. Raises ValueError if it is not JSON."""
    return json.loads(sys.stdin.buffer.readline())


def read_config(kind: type[Config]) -> Config:
    """Reads the configuration of this process as a record. Raises ValueError if it does not fit."""
    return codec.received(kind, read_line())


def serving(message: object) -> None:
    """Writes `message` to stdout: this process is ready. Later output to stdout goes to the log."""
    print(json.dumps(codec.plain(message)), flush=True)  # noqa: T201 - stdout is a pipe to the parent process
    os.dup2(2, 1)


def end_with_parent(parent: int, number: signal.Signals) -> None:
    """Makes the kernel send a signal to this process when its parent ends. Exits at once if the parent has already ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def end_with_stdin(loop: asyncio.AbstractEventLoop, end: asyncio.Event, stdin: int = 0) -> None:
    """Sets the event `end` when stdin of this process closes, because the parent process closed it or is dead.

    `stdin` is its descriptor.
    """

    def readable() -> None:
        if not os.read(stdin, 4096):
            loop.remove_reader(stdin)
            end.set()

    loop.add_reader(stdin, readable)


OWN_FILES = 64  # open files of a process without rollouts: libraries, logs, pipes
PER_ROLLOUT = 4  # open files of the tap for each running rollout: connections to agent and backend, each possibly with an idle second one
MOST_FILES = 65_536  # highest limit that is set; a limit of a thousand million makes some programs slow


def raise_limit() -> None:
    """Raises the soft limit of open files of this process to the hard limit, but at most to MOST_FILES."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(ValueError, OSError):  # macOS has another limit, which cannot be read.
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def check_limit(concurrency: int) -> None:
    """Raises ConfigError if the hard limit of open files is too low for this many concurrent rollouts."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = OWN_FILES + PER_ROLLOUT * concurrency
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(
            f"{concurrency} rollouts in flight need up to {needed} open files in a process, and {hard} are allowed: raise the hard limit "
            f"(`ulimit -Hn`; LimitNOFILE= of systemd, --ulimit nofile= of Docker), or ask for {max(1, (hard - OWN_FILES) // PER_ROLLOUT)} "
            "with --agentbench-concurrency"
        )


_PREFIX = struct.Struct("!II")  # bytes of the header, bytes of the body
PREFIX = _PREFIX.size  # bytes before the header
MAX_FRAME = 1 << 30  # bytes of a frame at most; larger lengths come from other protocols

Packet = tuple[Any, bytes]  # (JSON of a message, for `Messages.read`; body)


def pack(message: Any, body: bytes = b"") -> bytes:
    """Returns the frame of a message. Values that JSON cannot express, such as a date in a scenario's metadata, become strings."""
    return framed(header(message), body)


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
    send(connection, Hello(token, role))
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
