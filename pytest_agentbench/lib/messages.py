"""Messages between the processes of a session: frozen dataclasses, told apart by the names of their classes.

A protocol module holds the messages of one connection. For each of its two directions it has the union of the messages that may come,
and a reader of them: `FromPool = Begun | Failed` and `FROM_POOL: Messages[FromPool] = Messages(FromPool)`.
"""

from __future__ import annotations

import reprlib
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pytest_agentbench.lib import codec
from pytest_agentbench.lib.record_fields import is_union

Message = TypeVar("Message")

#: The number of the present protocols. It goes up with each change of a message, so that no process misreads one of another version.
PROTOCOL = 1


@dataclass(frozen=True)
class Hello:
    """The first message of a connection to a process of a session, with the session's token.

    The other side closes a connection with another token without an answer, and answers another protocol with `Refused`.
    In every version it is called `Hello` and has the fields `token` and `protocol`.
    """

    token: str = field(repr=False)
    role: str  # what the sender is to the receiver: `controller`, `pool` or `test`
    protocol: int = PROTOCOL


@dataclass(frozen=True)
class Listening:
    """The first line that a server process writes to stdout: from now on it answers on this port."""

    port: int  # on 127.0.0.1


@dataclass(frozen=True)
class Refused:
    """What a process sends before it closes a connection to a process of another version. `Messages.read` raises it as `OtherVersion`."""

    reason: str


class OtherVersion(ConnectionError):
    """The other process speaks another protocol. It is of no use to ask again."""


def refusal(protocol: object) -> str:
    """Returns why a process with another protocol number cannot be answered; an empty text for the present number."""
    if protocol == PROTOCOL:
        return ""
    return f"a process speaks protocol {protocol}, and this one protocol {PROTOCOL}: both need the same version of pytest-agentbench"


def header(message: Any) -> Any:
    """Returns the JSON of a message: the name of its class, and its fields."""
    return [type(message).__name__, codec.plain(message)]


class Messages(Generic[Message]):
    """Reads the messages of one direction of a connection."""

    def __init__(self, kinds: Any) -> None:
        """`kinds` is the union of their classes, or the only one."""
        members = typing.get_args(kinds) if is_union(kinds) else (kinds,)
        self.kinds: Mapping[str, type[Any]] = {kind.__name__: kind for kind in (*members, Refused)}

    def read(self, header: Any) -> Message:
        """Returns the message; raises ValueError for one that does not belong here or is damaged, OtherVersion for a `Refused`."""
        if header.__class__ is not list or len(header) != 2 or header[0].__class__ is not str:
            raise ValueError(f"{reprlib.repr(header)} is no message")
        name, fields = header
        if name not in self.kinds:
            raise ValueError(f"the message {name[:100]!r} is unknown; known are: {', '.join(self.kinds)}")
        message = codec.received(self.kinds[name], fields)
        if isinstance(message, Refused):
            raise OtherVersion(message.reason)
        return message  # type: ignore[no-any-return]  # the classes come from a union, which is a value
