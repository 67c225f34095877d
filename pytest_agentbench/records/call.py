"""Records of calls: the endpoint that answers them, one request of an agent, one call of a tool. Also the types that all records use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

Json = dict[str, Any]

#: Metadata of the field of a record whose entries stand among the record's own keys where JSON has it: backends and plugins add some.
OPEN = {"open": True}

#: Metadata of a field that has the same value in many records, which `codec` writes once.
SHARED = {"shared": True}

#: Trials of a scenario that a session may ask for: more would be a slip of a finger, for nobody waits for so many.
MOST_TRIALS = 1000

#: Settings of an agent that are sampling parameters of every request.
SAMPLING = ("temperature", "top_p", "max_tokens", "seed", "model")


@dataclass(frozen=True)
class Endpoint:
    """Where a backend answers."""

    url: str  # OpenAI base URL, ends before /chat/completions, e.g. http://127.0.0.1:8000/v1
    model: str  # name to send in requests
    backend: str = ""  # name of the backend, e.g. embedded
    api_key: str | None = field(default=None, repr=False)  # sent as a bearer token, never stored
    ca_file: str | None = None  # certificate authority of an https URL, PEM
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # sent with every call
    requests_per_minute: float | None = None  # that it takes; None: as many as come
    labels: Json = field(default_factory=dict)  # how rollouts are announced, as `labels` of a backend YAML has it; empty: not at all
    api_key_env: str | None = None  # the environment variable that `api_key` is from
    roles: Mapping[str, Json] = field(default_factory=dict)  # name -> player, as `endpoint` of Access; they override a suite's
    prices: Json | None = None  # of its tokens
    request_fields: Mapping[str, str | None] = field(default_factory=dict)  # field -> name that the model accepts, or None
    context_length: int | None = None  # tokens of prompt and answer together


@dataclass(frozen=True)
class Access:
    """How somebody is to call a model through the tap, under a token of his own."""

    upgrade: bool | None = None  # whether calls that do not stream travel as streams; None: as each of them asks
    keep: bool = False  # whether the records of the calls keep what the model said
    role: str = ""  # in whose name the calls are made; empty: the agent's own
    model: str = ""  # name in requests; empty: the model that plays the role
    calls: int | None = None  # so many calls are relayed, later ones are refused; None: all
    # url (none: the backend under test), model, api_key (name of an environment variable), prices, limits, request_fields,
    # context_length; None: no suite names it
    endpoint: Json | None = None
    account: str = ""  # of its rollout, which has `limits` for all that is called under it; empty: none
    limits: Json = field(default_factory=dict)  # of `calls`, `tokens` and `cost`


#: Chunk kinds that count as output: the first one ends TTFT, the gaps between them are ITL.
OUTPUT_KINDS = frozenset({"content", "reasoning", "tool_call"})


#: The role of whoever says how good an agent's work was.
JUDGE = "judge"

#: Every way an LLM call can fail. Each is the call's own fault class: none is a score, and only the rollout is tried again.
ERROR_KINDS = {
    "connect": "no connection to the backend",
    "timeout_connect": "the connection took longer than its budget",
    "timeout_first_token": "no content, reasoning or tool call came within its budget",
    "timeout_idle": "a stream stalled: no further output came within its budget",
    "timeout_call": "the whole call took longer than its budget",
    "rate_limited": "HTTP 429",
    "overloaded": "HTTP 503 or 529",
    "server_error": "any other HTTP 5xx",
    "redirect": "HTTP 3xx, which is not followed",
    "http_status": "any other HTTP status than 200",
    "bad_history": "HTTP 400 or 422 to a request whose history holds tool arguments of the model that are no JSON object",
    "encoding": "a content-encoding that the tap cannot read",
    "too_large": "an answer of more bytes or events than the tap takes, or one that grows too much when it is unpacked",
    "cut": "the connection closed in the middle of the answer, or before it",
    "bad_json": "an event or a body that is no JSON of the API",
    "bad_tool_call": "pieces of tool calls that make no call",
    "error_event": "an error inside a 200",
    "no_choices": "events, and `choices: []` in all of them",
    "empty": "a 200 that says nothing, not even that this is all: no body, no event, or no text and no tool call",
    "incomplete": "a stream that ended without a finish reason",
    "client_gone": "the agent left before the answer was whole",
    "limit": "the tap did not relay a call beyond a limit of its role or rollout",
    "refused": "the tap did not relay a request that is no LLM call as it is written, nor one of the few others that pass",
}


class Chunk(NamedTuple):
    """One event of a streamed answer, as it arrived at the tap."""

    at_ns: int  # monotonic nanoseconds
    kind: str  # role | content | reasoning | tool_call | finish | usage | other
    own_stamp: bool = True  # False when a later event of the same read shares this stamp
    lag_ns: int | None = None  # how long it lay in the kernel before the tap read it; None for stamps taken in user space
    tokens: int | None = None  # completion tokens up to here, from servers that count them in every event


@dataclass(frozen=True)
class ToolCall:
    """One tool call an agent made, as the model wrote it and as it was understood."""

    name: str  # the tool's own, or as the model wrote it where there is no such tool
    arguments: Json  # parsed; {} when they could not be parsed
    turn: int  # which of the agent's turns, counted from 1
    problem: str | None = None  # unknown_tool | malformed_arguments | invalid_arguments | None
    detail: str = ""  # the message the model was given about the problem
    raw: str | None = None  # the argument text, kept only when it could not be parsed as it was
    repaired: bool = False  # the arguments were almost JSON, and were understood all the same
    refusal: str = ""  # the message with which the tool refused a call that fits its schema; the model was given it
    injected: bool = False  # the refusal is one that [`error_rate`](tools.md#canned-answers) in suite.yaml asks for
    user_turn: int = 1  # which message of the user it answers, counted from 1
    started_ns: int | None = None  # monotonic nanoseconds; None when nobody took the time
    ended_ns: int | None = None  # None as well of a call that nobody saw the end of

    @property
    def ran(self) -> bool:
        """Whether the tool was carried out, though it may have refused or failed. One that could not be understood never is."""
        return self.problem is None


@dataclass(frozen=True)
class LLMCall:
    """One request of an agent, as the tap saw it.

    TTFT, ITL and the like are not stored: `metrics/timings` derives them from the stamps.
    """

    received_ns: int  # the tap had the whole request
    sent_ns: int | None  # the last byte of the request was written upstream; None if never
    ended_ns: int  # the answer was complete, or the call failed
    chunks: tuple[Chunk, ...] = ()
    called_ns: int | None = None  # the agent made the call; None when the client did not say
    dialect: str = ""  # chat | completions | responses | messages; empty for a request of another kind
    streamed: bool = False  # whether the agent itself asked for a stream
    upgraded: bool = False  # whether the tap made a stream of it, and one answer of that stream
    model: str = ""  # that was asked for
    answered_by: str = ""  # the model that the answer names; empty where it names none
    role: str = ""  # who [asked](roles.md): empty for the agent itself, `judge` for judges
    endpoint: str = ""  # base URL of the endpoint that it went to where that is not the backend under test
    http_status: int | None = None  # of the backend; None when it never answered
    request_bytes: int = 0
    request_crc: int | None = None  # CRC-32 of the body that the agent sent: the same one asks the same
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None  # prompt tokens served from the prefix cache
    token_source: str = "none"  # usage | continuous | chunks | none; `continuous`: usage in every event, also in the last
    finish_reason: str | None = None
    error_kind: str | None = None  # one of ERROR_KINDS; None for a call that went well
    error: str = ""  # one sentence
    retry_after_s: float | None = None  # seconds that a 429 or 5xx asked for
    stamp: str = "user"  # user | kernel: where chunk stamps were taken
    held_ns: int = 0  # how long the backend's rate limit kept it at the tap; a part of the time between `received_ns` and `sent_ns`
    repeats: int = 0  # times it was to go on a connection that the backend had closed while idle, and went on another; it was sent once
    response_id: str | None = None  # what the server calls its answer, in its logs as well
    server: Json | None = None  # what the server told of the call: `worker_id` and `timing` of Dynamo, `timing` of ThunderAgent
    said: Json | None = None  # what the model said, `text` and `tool_calls` of {id, name, arguments}, where it is asked to be kept

    @property
    def measured(self) -> bool:
        """Whether it is in the timings of a run: it reached the backend under test, and was a part of the agent's work."""
        return not self.endpoint and self.role != JUDGE

    @property
    def begun_ns(self) -> int:
        """When the agent made the call, or else when the tap had the request."""
        return self.received_ns if self.called_ns is None else self.called_ns

    @cached_property
    def output(self) -> list[Chunk]:
        """The chunks with text or a tool call, in the order in which they came."""
        return [chunk for chunk in self.chunks if chunk.kind in OUTPUT_KINDS]


def split_calls(calls: Iterable[LLMCall]) -> tuple[tuple[LLMCall, ...], tuple[LLMCall, ...]]:
    """Returns (`calls`, `other_calls`) of an attempt: those that are in the timings of a run, and all others, each in their order."""
    every = tuple(calls)
    return tuple(call for call in every if call.measured), tuple(call for call in every if not call.measured)
