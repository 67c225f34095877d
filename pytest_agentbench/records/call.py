"""Records of calls (LLM calls and tool calls) and of the endpoints that answer them, with types and constants that all records use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, NamedTuple, TypeAlias

Json = dict[str, Any]

#: Metadata of a mapping field whose entries JSON writes as keys of the record itself. Backends and plugins add such keys.
OPEN = {"open": True}

#: Metadata of a field whose value is often equal in many records; `codec` writes each value only once.
SHARED = {"shared": True}

#: A point in time: `time.monotonic_ns()` of the machine that took it, or 0 if it was not measured.
#: Records of node workers (processes on other machines) are moved to the clock of the session by adding a number to all their stamps.
Stamp: TypeAlias = Annotated[int, "stamp"]

#: A length of time in nanoseconds. It is the same on all clocks. Every field whose name ends in `_ns` is a Stamp or a Nanoseconds.
Nanoseconds: TypeAlias = Annotated[int, "nanoseconds"]

#: The greatest number of trials per scenario that a session accepts. A larger number is taken for a typing error.
MOST_TRIALS = 1000

#: Settings of an agent that are sent as sampling parameters in each request.
SAMPLING = ("temperature", "top_p", "max_tokens", "seed", "model")


@dataclass(frozen=True)
class Endpoint:
    """The address of a backend, and how to call it."""

    url: str  # OpenAI base URL without /chat/completions, for example http://127.0.0.1:8000/v1
    model: str  # model name to send in requests
    backend: str = ""  # name of the backend, for example embedded
    api_key: str | None = field(default=None, repr=False)  # secret that is sent as a bearer token and never stored
    ca_file: str | None = None  # path of a PEM file with the certificate authority for an https URL
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # HTTP headers to send with every call
    requests_per_minute: float | None = None  # rate limit of the backend; None if there is no limit
    labels: Json = field(default_factory=dict)  # key `labels` of the backend YAML: how rollouts are announced; empty if they are not
    api_key_env: str | None = None  # environment variable that contains `api_key`
    roles: Mapping[str, Json] = field(default_factory=dict)  # role -> endpoint, as in `Access.endpoint`; it replaces the suite's
    prices: Json | None = None  # token prices, as `prices` of a backend YAML
    request_fields: Mapping[str, str | None] = field(default_factory=dict)  # request field -> name in requests; None: left out
    context_length: int | None = None  # most tokens of prompt and answer together; None if unknown
    plays_roles: bool = False  # whether it plays all roles, so that no call goes to another endpoint


@dataclass(frozen=True)
class Access:
    """The permission to call a model through the tap (the recording proxy). Each permission has its own token."""

    upgrade: bool | None = None  # whether the tap requests a stream for calls without streaming; None: the call decides
    keep: bool = False  # whether the pool can request the texts of the answers before the permission ends
    role: str = ""  # role that makes the calls; empty for the agent itself
    model: str = ""  # model name to send in requests; empty for the model of the role
    calls: int | None = None  # the greatest number of calls, after which calls are refused; None if there is no limit
    # keys: url (missing for the backend under test), model, api_key (name of an environment variable), prices, limits, request_fields,
    # context_length; None if the suite does not define the role
    endpoint: Json | None = None
    account: str = ""  # account of the rollout, whose `limits` apply to all its calls together; empty if there is none
    limits: Json = field(default_factory=dict)  # the greatest `calls`, `tokens` and `cost` of the account


#: Kinds of chunks that count as output. The first such chunk ends TTFT, and the gaps between them are ITL.
OUTPUT_KINDS = frozenset({"content", "reasoning", "tool_call"})


#: The role of calls that judge an agent's work.
JUDGE = "judge"

#: Kind of failure of a call that the recording of a run does not contain.
NOT_RECORDED = "not_recorded"

#: Kinds of failures of an LLM call -> description. A failed call is not a score; only the whole rollout can be retried.
ERROR_KINDS = {
    "connect": "no connection to the backend",
    "timeout_connect": "the connection took longer than its budget",
    "timeout_first_token": "no content, reasoning or tool call arrived within its budget",
    "timeout_idle": "a stream stalled: no further output came within its budget",
    "timeout_call": "the whole call took longer than its budget",
    "rate_limited": "HTTP 429",
    "overloaded": "HTTP 503 or 529",
    "server_error": "any other HTTP 5xx",
    "redirect": "HTTP 3xx; redirects are not followed",
    "http_status": "any other HTTP status than 200",
    NOT_RECORDED: "the [recording](recordings.md) that answers in place of a backend does not contain the request",
    "bad_history": "HTTP 400 or 422 to a request whose history contains tool arguments that are not a JSON object",
    "encoding": "a content-encoding that the tap cannot decompress",
    "too_large": "an answer with more bytes or events than the tap accepts, or one that expands too much when it is decompressed",
    "cut": "the connection was closed before or during the answer",
    "bad_json": "an event or a body that is not valid JSON of the API",
    "bad_tool_call": "fragments of tool calls that do not form a call",
    "error_event": "an error inside an answer with HTTP 200",
    "no_choices": "only events with `choices: []`",
    "empty": "HTTP 200 without content or a finish reason: no body, no event, or no text and no tool call",
    "incomplete": "a stream that ended without a finish reason",
    "client_gone": "the agent closed the connection before the answer was complete",
    "limit": "the tap refused the call because a limit of its role or rollout was reached",
    "refused": "the tap refused the request because it is neither a valid LLM call nor another allowed request",
}


class Chunk(NamedTuple):
    """One event of a streamed answer, with the time at which it arrived at the tap (the recording proxy)."""

    at_ns: Stamp  # arrival, monotonic nanoseconds
    kind: str  # content of the event: role | content | reasoning | tool_call | finish | usage | other
    own_stamp: bool = True  # whether the timestamp is its own; False if a later event of the same read has it too
    lag_ns: Nanoseconds | None = None  # nanoseconds it waited in the kernel until the tap read it; None for user-space timestamps
    tokens: int | None = None  # completion tokens up to this event; None if the server does not count them in each event


@dataclass(frozen=True)
class ToolCall:
    """One tool call of an agent: the text of the model and its interpretation."""

    name: str  # name of the tool; the model's text if no tool has that name
    arguments: Json  # parsed arguments; {} if they could not be parsed
    turn: int  # number of the agent's turn, counted from 1
    problem: str | None = None  # unknown_tool | malformed_arguments | invalid_arguments; None if the call is valid
    detail: str = ""  # message to the model about the problem; empty without a problem
    raw: str | None = None  # argument text; None if it could be parsed unchanged
    repaired: bool = False  # whether the arguments were not quite JSON and were corrected
    refusal: str = ""  # message to the model with which the tool refused a valid call; empty if it did not
    injected: bool = False  # whether the refusal was caused by [`error_rate`](tools.md#canned-answers) in suite.yaml
    user_turn: int = 1  # number of the user message that it answers, counted from 1
    started_ns: Stamp | None = None  # start, monotonic nanoseconds; None if it was not measured
    ended_ns: Stamp | None = None  # end, monotonic nanoseconds; None if it was not measured, or if the call did not end

    @property
    def ran(self) -> bool:
        """Whether the tool was executed, even if it refused or failed. A call with a `problem` is never executed."""
        return self.problem is None


@dataclass(frozen=True)
class KeptCall:
    """The ids under which messages.jsonl contains the request and the reply of a call."""

    request: str = ""  # id of the form: the request without its messages and other large parts; empty if the request was not kept
    prompt: str = ""  # id of the last message of the prompt, with all messages before it; empty if the request has no messages
    reply: str = ""  # id of the complete answer, as without streaming; empty if there is none, or if it was not kept
    missing: str = ""  # why nothing was kept: `limit` if the tap had reached its limit; empty otherwise


def engine_name(worker: object) -> str | None:
    """Returns the name of an engine from the `worker_id` of an answer, or None if it has none.

    Dynamo names a worker for each part of the work; the one that made the output (`decode_worker_id`) counts.
    """
    if isinstance(worker, dict):
        worker = worker.get("decode_worker_id")
    return None if worker is None else str(worker)


@dataclass(frozen=True)
class ToldHints:
    """What the router was told to expect of a call, in its [hints](hints.md)."""

    tokens: int | None = None  # output tokens (`osl`); None if the router was not told
    usual_tokens: float | None = None  # median of the output tokens in a learnt table, which routers are not told; None without a table
    remaining: float | None = None  # calls of the session that follow; None if the router was not told
    next_ms: float | None = None  # milliseconds from the answer to the next call (`iat`); None if the router was not told


@dataclass(frozen=True)
class LLMCall:
    """One LLM request of a rollout, recorded by the tap (a proxy before the backend).

    Metrics such as TTFT and ITL are not stored. `metrics/timings` computes them from the timestamps.
    """

    received_ns: Stamp  # when the tap had the whole request, monotonic nanoseconds
    sent_ns: Stamp | None  # when the last byte of the request was sent to the backend, monotonic nanoseconds; None if it was not sent
    ended_ns: Stamp  # when the answer was complete or the call failed, monotonic nanoseconds
    chunks: tuple[Chunk, ...] = ()  # events of the answer, in the order of arrival
    called_ns: Stamp | None = None  # when the agent made the call, monotonic nanoseconds; None if its client did not report it
    dialect: str = ""  # API: chat | completions | responses | messages; empty for any other request
    streamed: bool = False  # whether the agent requested a stream
    upgraded: bool = False  # whether the tap requested a stream and assembled one answer from it
    model: str = ""  # model name in the request
    answered_by: str = ""  # model name in the answer; empty if it contains none
    role: str = ""  # [role](roles.md) that made the call: empty for the agent itself, `judge` for judges
    endpoint: str = ""  # base URL of the endpoint; empty for the backend under test
    http_status: int | None = None  # HTTP status of the backend; None if it did not answer
    request_bytes: int = 0  # size of the request body from the agent
    request_crc: int | None = None  # CRC-32 of the request body from the agent, equal for equal requests; None if unknown
    prompt_tokens: int | None = None  # prompt tokens reported by the server; None if it reports none
    completion_tokens: int | None = None  # completion tokens reported by the server; None if it reports none
    cached_tokens: int | None = None  # prompt tokens from the prefix cache; None if the server does not report them
    token_source: str = "none"  # source of the token counts: usage | continuous (usage in each event) | chunks | none
    finish_reason: str | None = None  # finish reason in the answer; None if it contains none
    error_kind: str | None = None  # [kind of failure](metrics.md#failed-calls); None if the call succeeded
    error: str = ""  # one sentence on the failure; empty if the call succeeded
    retry_after_s: float | None = None  # seconds to wait, from the header of a 429 or 5xx; None without that header
    stamp: str = "user"  # source of the chunk timestamps: user | kernel
    held_ns: Nanoseconds = 0  # nanoseconds that a rate limit delayed the request, between `received_ns` and `sent_ns`
    head_ns: Stamp | None = None  # when the head of the answer had arrived, monotonic nanoseconds; None if none arrived
    # when the last data of the answer before arrived on the same connection to the backend, monotonic nanoseconds; None on a new connection
    idle_since_ns: Stamp | None = None
    repeats: int = 0  # idle connections that the backend had closed when the request was to be sent; it was sent once
    response_id: str | None = None  # id of the answer, which is also in the logs of the server; None if it contains none
    server: Json | None = None  # `worker_id` of Dynamo or the built-in engine, `timing` of Dynamo or ThunderAgent; None if none is sent
    hints: ToldHints | None = None  # what the router was told to expect of the call; None without such hints
    # whether the request asked Dynamo for a [speculative prefill](hints.md#speculative-prefill), a second request after the answer
    speculative: bool = False
    kept: KeptCall | None = None  # [request and reply](conversations.md); None if the session does not keep those of this call

    @property
    def measured(self) -> bool:
        """Whether the timings of a run include the call: it went to the backend under test, and not on behalf of a judge."""
        return not self.endpoint and self.role != JUDGE

    @property
    def engine(self) -> str | None:
        """The name of the engine that answered. None if the answer names none."""
        return engine_name((self.server or {}).get("worker_id"))

    @property
    def begun_ns(self) -> int:
        """When the agent made the call, or when the tap received the request if that is unknown. Monotonic nanoseconds."""
        return self.received_ns if self.called_ns is None else self.called_ns

    @cached_property
    def output(self) -> list[Chunk]:
        """The chunks with content, reasoning or a tool call, in the order of arrival."""
        return [chunk for chunk in self.chunks if chunk.kind in OUTPUT_KINDS]


def split_calls(calls: Iterable[LLMCall]) -> tuple[tuple[LLMCall, ...], tuple[LLMCall, ...]]:
    """Returns (`calls`, `other_calls`) of an attempt: the calls that the timings of a run include, and the others. The order is kept."""
    every = tuple(calls)
    return tuple(call for call in every if call.measured), tuple(call for call in every if not call.measured)


def kept_calls(calls: Iterable[LLMCall]) -> list[KeptCall]:
    """Returns where messages.jsonl has the successful calls of the agent itself. Calls that were not kept are left out."""
    own = (call.kept for call in calls if not call.role and call.error_kind is None)
    return [kept for kept in own if kept is not None and kept.request and kept.reply]
