"""Messages between the pool and a tap, and between the controller and a tap that starts.

The controller starts a tap with a `TapConfig` on its stdin, and the tap answers on stdout with `TapListening`. The controller then sends
the ports of all taps to the pool as `TapPorts`. The pool connects to the control port of each tap and begins with a `Hello`. After that it
asks: each of its messages gets one answer, in the order of the questions. A `TapRefusal` may answer any of them, and the connection stays.
With several taps the pool asks all of them the same, because the kernel decides which tap gets a connection of an agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_agentbench.lib.messages import Messages
from pytest_agentbench.metrics.cost import TokenPrices
from pytest_agentbench.records import Json, LLMCall
from pytest_agentbench.tap.routing_hints import NO_LABEL, Label


@dataclass(frozen=True)
class Budgets:
    """Time limits of a call's parts, in seconds; None is no limit."""

    connect: float | None = None  # until there is a connection to the backend, TLS included
    first_token: float | None = None  # from the send, or an earlier answer's head, to the first content, reasoning or tool call of a stream
    idle: float | None = None  # from one of those to the next
    call: float | None = None  # from the whole request at the tap, or from where a rate limit lets it go, to the end of the answer


@dataclass(frozen=True)
class TapConfig:
    """The line on a tap's stdin, from the controller. The tap listens, and answers with `TapListening`."""

    token: str = field(repr=False)  # of the `Hello` of whoever may ask the tap
    budgets: Budgets = Budgets()  # of each call
    port: int = 0  # for agents, on 127.0.0.1; 0: any that is free


@dataclass(frozen=True)
class TapListening:
    """The first line that a tap writes to stdout: from now on agents and the pool can connect."""

    port: int  # for agents, on 127.0.0.1; all taps of a session share it
    control_port: int  # for the pool, on 127.0.0.1


@dataclass(frozen=True)
class TapPorts:
    """Where the taps of a session are. The controller sends this to the pool, which connects to each of them."""

    port: int  # for agents, on 127.0.0.1; the taps share it
    control_ports: tuple[int, ...]  # for the pool, on 127.0.0.1, one of each tap
    token: str = field(repr=False)  # of the pool's `Hello` to them


@dataclass(frozen=True)
class UpstreamFacts:
    """A server that calls go to: its address, and what every request to it gets."""

    url: str  # OpenAI base URL, http:// or https://
    api_key: str | None = field(default=None, repr=False)  # sent as a bearer token
    ca_file: str | None = None  # certificate authority of an https URL, PEM
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # sent with every call
    requests_per_minute: float | None = None  # that this tap may send; None: as many as come
    api_key_env: str | None = None  # the environment variable that `api_key` is from, for advice in error messages


@dataclass(frozen=True)
class SpendingLimits:
    """What may be spent before further calls are refused; None is no limit."""

    calls: int | None = None
    tokens: int | None = None  # of prompts and output
    cost: float | None = None  # in the currency of the prices


NO_LIMITS = SpendingLimits()


@dataclass(frozen=True)
class RolloutAccount:
    """What the addresses of one rollout may spend together."""

    id: str
    limits: SpendingLimits


@dataclass(frozen=True)
class PointAt:
    """From the pool: calls go to this server from now on, those under way excepted. The tap answers `TapDone`."""

    upstream: UpstreamFacts


@dataclass(frozen=True)
class OpenAddress:
    """From the pool, before an attempt calls a model: an agent may call under the address /r/<id>/v1. The tap answers `TapDone`."""

    id: str  # which no address of this tap has had
    upgrade: bool | None = None  # whether calls travel as streams; None: as each of them asks; False: requests are left alone
    label: Label = NO_LABEL  # what each of its requests gets
    keep: bool = False  # whether the records of its calls hold what the model said
    elsewhere: UpstreamFacts | None = None  # where its calls go; None: where those of all others go
    salt: str = ""  # before the system prompt of each call; empty: none
    calls: int | None = None  # how many of them are relayed; None: all
    role: str = ""  # in whose name the calls are made; empty: the agent's own
    limits: SpendingLimits = NO_LIMITS  # of this address alone
    prices: TokenPrices | None = None  # of its tokens; None: unknown
    account: RolloutAccount | None = None  # that its calls count for as well; None: the rollout has no limits


@dataclass(frozen=True)
class TakeReplies:
    """From the pool, when a black box has ended: asks what the model said under an address with `keep`.

    The tap breaks off the calls that are under way, and answers `KeptReplies`.
    """

    id: str


@dataclass(frozen=True)
class CloseAddress:
    """From the pool, when an attempt is over. The tap breaks off the calls that are under way, and answers `AddressCalls`."""

    id: str


@dataclass(frozen=True)
class GetTapStats:
    """From anyone with the token, at any time. The tap answers `TapStats`."""


@dataclass(frozen=True)
class TapDone:
    """The tap did what it was asked to do."""


@dataclass(frozen=True)
class KeptReply:
    """What the model said in one answer."""

    received_ns: int  # of its call
    said: Json  # as `LLMCall.said` has it


@dataclass(frozen=True)
class KeptReplies:
    """Answers `TakeReplies`: each reply that came whole since this was asked last, in the order of the calls."""

    replies: tuple[KeptReply, ...]


@dataclass(frozen=True)
class AddressCalls:
    """Answers `CloseAddress`: all calls that were made under the address, in the order in which they came."""

    calls: tuple[LLMCall, ...]


@dataclass(frozen=True)
class TapStats:
    """Answers `GetTapStats`."""

    in_flight: int  # requests that are being answered
    open: int  # addresses
    clock_steps: int  # that the present upstream's connections have seen the system's clock make


@dataclass(frozen=True)
class TapRefusal:
    """Answers a message that the tap cannot read, or cannot do anything with. Nothing has changed."""

    reason: str


ToTap = PointAt | OpenAddress | TakeReplies | CloseAddress | GetTapStats
TO_TAP: Messages[ToTap] = Messages(ToTap)

FromTap = TapDone | KeptReplies | AddressCalls | TapStats | TapRefusal
FROM_TAP: Messages[FromTap] = Messages(FromTap)
