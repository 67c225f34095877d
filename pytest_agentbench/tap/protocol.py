"""Messages between the pool and a tap, and between the controller and a tap that starts.

The controller starts a tap with a `TapConfig` on its stdin, and the tap answers on stdout with `TapListening`. The controller then sends
the ports of all taps to the pool as `TapPorts`. The pool connects to the control port of each tap and begins with a `Hello`. Each further
message of the pool gets one answer, in the order of the messages. Any of them may be answered by a `TapRefusal`; the connection stays
open. If there are several taps, the pool sends each message to all of them, because the kernel decides which tap an agent connects to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_agentbench.lib.wire import Messages
from pytest_agentbench.metrics.terms import TokenPrices
from pytest_agentbench.records import Json, LLMCall
from pytest_agentbench.tap.routing_hints import NO_LABEL, Label


@dataclass(frozen=True)
class Budgets:
    """Time limits for the parts of a call, in seconds. None means that there is no limit."""

    connect: float | None = None  # until there is a connection to the backend, TLS included
    first_token: float | None = None  # from the send, or an earlier head of the answer, to the first output of a stream
    idle: float | None = None  # from one of those to the next
    call: float | None = None  # from the complete request at the tap, or the end of a delay by the rate limit, to the end of the answer


@dataclass(frozen=True)
class TapConfig:
    """The line on a tap's stdin, from the controller. The tap listens, and answers with `TapListening`."""

    token: str = field(repr=False)  # a `Hello` with another token is not answered
    budgets: Budgets = Budgets()  # time limits for each call
    port: int = 0  # for agents, on 127.0.0.1; 0: a free port


@dataclass(frozen=True)
class TapListening:
    """The first line that a tap writes to stdout: from now on agents and the pool can connect."""

    port: int  # for agents, on 127.0.0.1; all taps of a session share it
    control_port: int  # for the pool, on 127.0.0.1


@dataclass(frozen=True)
class TapPorts:
    """The ports of the taps of a session. The controller sends them to the pool, which connects to each tap."""

    port: int  # for agents, on 127.0.0.1; the taps share it
    control_ports: tuple[int, ...]  # for the pool, on 127.0.0.1; one port for each tap
    token: str = field(repr=False)  # for the pool's `Hello` to each tap


@dataclass(frozen=True)
class UpstreamFacts:
    """A server that LLM calls are sent to: its address, the API key and headers of each request, and a rate limit."""

    url: str  # OpenAI base URL, http:// or https://
    api_key: str | None = field(default=None, repr=False)  # sent as a bearer token
    ca_file: str | None = None  # certificate authority of an https URL, PEM
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # sent with every call
    requests_per_minute: float | None = None  # rate limit of this tap; None: no limit
    api_key_env: str | None = None  # the environment variable that `api_key` is from, for advice in error messages


@dataclass(frozen=True)
class SpendingLimits:
    """Spending limits. When one is reached, further calls are refused. None means that there is no limit."""

    calls: int | None = None
    tokens: int | None = None  # prompts and output together
    cost: float | None = None  # in the currency of the prices


NO_LIMITS = SpendingLimits()


@dataclass(frozen=True)
class RolloutAccount:
    """Spending limits for a whole rollout: they apply to the sum of its calls, whichever role makes them."""

    id: str
    limits: SpendingLimits


@dataclass(frozen=True)
class PointAt:
    """From the pool: sends calls to this server from now on, except calls in flight. The tap answers `TapDone`."""

    upstream: UpstreamFacts


@dataclass(frozen=True)
class OpenAddress:
    """From the pool, before an attempt calls a model: opens the address /r/<id>/v1 for an agent. The tap answers `TapDone`."""

    id: str  # unique among all addresses that this tap has had
    upgrade: bool | None = None  # whether to stream calls from the backend; None: each call decides; False: usage is not requested, either
    label: Label = NO_LABEL  # headers and fields that the tap adds to each request
    keep: bool = False  # whether `TakeReplies` returns the texts of the answers
    kept: str = "none"  # what is kept for messages.jsonl: `all`, `calls` (without tools and other large parts) or `none`
    elsewhere: UpstreamFacts | None = None  # server for the calls; None: the one of `PointAt`
    salt: str = ""  # text that is put before each system prompt
    calls: int | None = None  # number of LLM calls that are allowed; None: no limit
    role: str = ""  # role that makes the calls; empty: the agent itself
    limits: SpendingLimits = NO_LIMITS  # for this address alone
    prices: TokenPrices | None = None  # prices of tokens; None: unknown
    account: RolloutAccount | None = None  # account of the rollout; None: the rollout has no limits


@dataclass(frozen=True)
class TakeReplies:
    """From the pool, when a black-box agent has ended: requests the texts of answers, which the tap keeps under this address.

    The tap aborts the calls in flight, and answers `KeptReplies`.
    """

    id: str


@dataclass(frozen=True)
class CloseAddress:
    """From the pool, when an attempt is over. The tap aborts the calls in flight, and answers `AddressCalls`."""

    id: str


@dataclass(frozen=True)
class GetTapStats:
    """From any client with the token, at any time: requests the counts in `TapStats`, such as the number of calls in flight."""


@dataclass(frozen=True)
class TapDone:
    """The tap has carried out the message."""


@dataclass(frozen=True)
class KeptReply:
    """The text and the tool calls of one answer."""

    received_ns: int  # time at which the request was received, as in `LLMCall`
    said: Json  # `text`, and `tool_calls` as {id, name, arguments}


@dataclass(frozen=True)
class KeptReplies:
    """Answers `TakeReplies`: the complete answers since the last `TakeReplies`, in the order of the calls."""

    replies: tuple[KeptReply, ...]


@dataclass(frozen=True)
class AddressCalls:
    """Answers `CloseAddress`: all calls that were made under the address, in the order in which they arrived.

    The body of the frame contains the lines for messages.jsonl to which the calls refer.
    """

    calls: tuple[LLMCall, ...]


@dataclass(frozen=True)
class TapStats:
    """Answers `GetTapStats`: how many calls are in flight, how many addresses are open, and how often the system clock was stepped."""

    in_flight: int  # number of requests that are being answered
    open: int  # number of open addresses
    clock_steps: int  # number of steps of the system clock that were noticed since the current upstream was set


@dataclass(frozen=True)
class TapRefusal:
    """Answers a message that the tap cannot read or carry out. Nothing has changed."""

    reason: str


ToTap = PointAt | OpenAddress | TakeReplies | CloseAddress | GetTapStats
TO_TAP: Messages[ToTap] = Messages(ToTap)

FromTap = TapDone | KeptReplies | AddressCalls | TapStats | TapRefusal
FROM_TAP: Messages[FromTap] = Messages(FromTap)
