"""Messages between a stack's daemon and its holders, which are the sessions and commands that use the stack.

A process that needs a stack starts a stack daemon with `StackDaemonConfig`, or finds one by its `StackFacts`. It connects to the
daemon's socket and sends `HoldStack`. The answer is `HoldAccepted` or `HoldDeclined`, or `Refused` if the daemon is of another version.

From then on, the daemon sends the state of the stack to each holder:

- `BootProgress` during the boot, which ends with `StackReady` or `BootFailed`
- `ServicesRestarting` whenever a service dies or serves again
- `StackEnded` when the stack has died or was stopped

A new holder gets the latest outcome at once. Messages to all holders may arrive before `HoldAccepted`, and twice. Closing the
connection releases the stack.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_agentbench.backends.telemetry.samples import Target
from pytest_agentbench.lib.wire import PROTOCOL, Messages, refusal
from pytest_agentbench.records import OPEN, Endpoint, Json


@dataclass(frozen=True)
class StackDaemonConfig:
    """The configuration that a stack daemon reads from stdin, as one line: the stack to boot, its folders and options."""

    spec: Json  # a StackSpec
    spec_hash: str
    inherited: Json  # surroundings that the stack inherits, as `inherited` returns them
    home: Path  # the stack's folder
    logs: Path
    gpu_wait: float  # seconds
    warm_up: int  # requests
    lock: int  # file descriptor of the stack's lock; the stack daemon holds the lock until it ends


@dataclass(frozen=True)
class Serving:
    """The message that a stack daemon writes to stdout first. It means that holders can connect to the daemon's socket."""


@dataclass(frozen=True)
class StackFacts:
    """The facts about a running stack that other processes can read, in `stack.json` in the stack's folder.

    The stack's daemon rewrites the file after each change. A daemon of another version of this package may have written the file. Such a
    stack can still be listed and ended, because missing fields have defaults and unknown fields are in `more`.
    """

    backend: str  # name
    spec_hash: str = ""
    inherited: Json = field(default_factory=dict)  # surroundings that the stack has inherited
    pid: int | None = None  # process id of the stack daemon
    logs: Path | None = None
    ready: Json = field(default_factory=dict)  # a ReadySpec
    started_at: str = ""  # ISO 8601
    state: str = "unknown"  # `booting`, `ready`, `restarting` or `stopping`
    keep_s: float | None = None  # seconds that it stays up without a holder; None: it is not kept
    until: float | None = None  # seconds since 1970 at which it ends unless it gets a holder; None: it has one
    url: str | None = None  # OpenAI base URL; None until it is ready
    model: str | None = None
    boot: Json = field(default_factory=dict)  # facts of the boot
    more: Json = field(default_factory=dict, metadata=OPEN)


@dataclass(frozen=True)
class HoldStack:
    """A holder's first message. It asks the daemon to keep the stack up as long as the holder is connected.

    The daemon answers `HoldAccepted` or `HoldDeclined`. If its protocol differs, it answers `Refused` and closes the connection. In all
    versions this message is called `HoldStack` and has the field `protocol`.
    """

    alone: bool  # whether the holder wants the stack only if it has no other holder
    protocol: int = PROTOCOL


@dataclass(frozen=True)
class KeepStack:
    """Sets how long the stack stays up without holders. A holder sends it, and the stack daemon does not answer."""

    seconds: float


@dataclass(frozen=True)
class StopStack:
    """Asks the daemon to end the stack, even if it has other holders. The daemon sends `StackEnded` to all of them and stops the stack."""


@dataclass(frozen=True)
class HoldAccepted:
    """The answer to `HoldStack` if the sender is a holder now."""


@dataclass(frozen=True)
class HoldDeclined:
    """The answer to `HoldStack` if the stack is about to end, or if it has another holder and the sender wants it alone."""


@dataclass(frozen=True)
class BootProgress:
    """Tells holders what the boot is waiting for, as a text for users. Sent twice a second, but not to holders that do not read."""

    text: str


@dataclass(frozen=True)
class StackReady:
    """Tells holders that the boot has succeeded and they can use the stack."""

    endpoint: Endpoint
    boot: Json  # facts of the boot
    metrics: tuple[Target, ...]  # one target for each replica of a service that has metrics


@dataclass(frozen=True)
class BootFailed:
    """Tells holders that the boot has failed. They report the reason and close the connection; then the stack daemon ends."""

    reason: str
    missing: bool  # whether this machine lacks something that the stack needs


@dataclass(frozen=True)
class StackEnded:
    """Tells holders that a service of the running stack has died for good, or that the stack was stopped. They report the reason."""

    reason: str


@dataclass(frozen=True)
class ServicesRestarting:
    """Tells holders which services of the running stack have died and are being restarted. They wait until `services` is empty."""

    services: tuple[str, ...]  # instances that are being restarted
    restarts: Mapping[str, int]  # instance -> number of restarts


StackOutcome = StackReady | BootFailed | StackEnded
ToDaemon = HoldStack | KeepStack | StopStack
FromDaemon = HoldAccepted | HoldDeclined | BootProgress | ServicesRestarting | StackReady | BootFailed | StackEnded
TO_DAEMON: Messages[ToDaemon] = Messages(ToDaemon)
FROM_DAEMON: Messages[FromDaemon] = Messages(FromDaemon)


def read_request(header: Any) -> ToDaemon:
    """Parses a message of a holder. Raises ValueError if it cannot be read, or if it is a `HoldStack` of another version."""
    match header:
        case ["HoldStack", {"protocol": protocol}] if reason := refusal(protocol):
            raise ValueError(reason)
    return TO_DAEMON.read(header)
