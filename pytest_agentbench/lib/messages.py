"""Messages between the processes of a session, and the child's side of one: a JSON line in, one out, and an end with stdin.

Messages are frozen dataclasses, told apart by the names of their classes. A protocol module holds the messages of one connection. For
each of its two directions it has the union of the messages that may come, and a reader of them: `FromPool = Begun | Failed` and
`FROM_POOL: Messages[FromPool] = Messages(FromPool)`. A process may open as many files as the system allows.
"""

from __future__ import annotations

import ctypes
import json
import os
import reprlib
import resource
import sys
import typing
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib import codec
from pytest_agentbench.lib.record_fields import is_union

if TYPE_CHECKING:
    import asyncio
    import signal


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


LOG = "AGENTBENCH_LOG"  # a variable of a process that we start: the file that its stderr goes to

PR_SET_PDEATHSIG = 1  # of prctl(2)


Config = TypeVar("Config")


def read_line() -> Any:
    """Reads the first line of stdin, which is JSON that says what the process is to do; raises ValueError for anything else."""
    return json.loads(sys.stdin.buffer.readline())


def read_config(kind: type[Config]) -> Config:
    """Returns the message that `read_line` reads; raises ValueError for anything else."""
    return codec.received(kind, read_line())


def serving(message: object) -> None:
    """Writes the first line of stdout, which says that this process serves. What is printed later goes to the log."""
    print(json.dumps(codec.plain(message)), flush=True)  # noqa: T201 - stdout is the line to the controller
    os.dup2(2, 1)


def end_with_parent(parent: int, number: signal.Signals) -> None:
    """Has the kernel send this process a signal when its parent ends, whatever this one is doing then."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def end_with_stdin(loop: asyncio.AbstractEventLoop, end: asyncio.Event) -> None:
    """Sets `end` when stdin closes: the controller is done, or dead."""

    def readable() -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            loop.remove_reader(sys.stdin.fileno())
            end.set()

    loop.add_reader(sys.stdin.fileno(), readable)


OWN_FILES = 64  # of a process without a rollout: its libraries, logs, pipes
PER_ROLLOUT = 4  # of a rollout in flight, in the tap: to agent and backend, each perhaps a second one that idles
MOST_FILES = 65_536  # enough for anybody; a limit of a thousand millions makes some programs slow


def raise_limit() -> None:
    """Raises the soft limit of this process as far as the hard one lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(ValueError, OSError):  # macOS has one more limit, which nobody tells
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def check_limit(concurrency: int) -> None:
    """Raises ConfigError where processes of a session may not open what so many rollouts in flight need."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = OWN_FILES + PER_ROLLOUT * concurrency
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(
            f"{concurrency} rollouts in flight need up to {needed} open files in a process, and {hard} are allowed: raise the hard limit "
            f"(`ulimit -Hn`; LimitNOFILE= of systemd, --ulimit nofile= of Docker), or ask for {max(1, (hard - OWN_FILES) // PER_ROLLOUT)} "
            "with --agentbench-concurrency"
        )
