"""The frozen records that move from left to right: what a rollout did, when, and how good it was.

Times that end in `_ns` are `time.monotonic_ns()` of this machine; only differences mean anything.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple, Self

from pytest_agentbench.errors import NoScore, ScorerFailed

Json = dict[str, Any]

#: Metadata of the field of a record whose entries stand among the record's own keys where JSON has it: backends and plugins add some.
OPEN = {"open": True}

#: Every way a rollout can end. Only `infra_error` is tried again; only `EVALUABLE` ones carry scores.
STATUSES = ("ok", "limit", "agent_error", "infra_error", "cancelled")
EVALUABLE = frozenset({"ok", "limit"})

#: Chunk kinds that count as output: the first one ends TTFT, the gaps between them are ITL.
OUTPUT_KINDS = frozenset({"content", "reasoning", "tool_call"})

#: Trials of a scenario that a session may ask for: more would be a slip of a finger, for nobody waits for so many.
MOST_TRIALS = 1000

#: Settings of an agent that are sampling parameters of every request.
SAMPLING = ("temperature", "top_p", "max_tokens", "seed", "model")

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
    "refused": "the tap did not relay a request that is no LLM call as it is written, nor one of the few others that pass",
}


class RolloutKey(NamedTuple):
    """Names one rollout: one scenario of one suite, under one variant, for the k-th time."""

    suite: str
    scenario: str
    variant: str = "default"
    trial: int = 1  # counted from 1

    @property
    def id(self) -> str:
        """The pytest parameter id; the first trial of the default variant is the bare scenario id."""
        variant = "" if self.variant == "default" else f"-{self.variant}"
        trial = "" if self.trial == 1 else f"-t{self.trial}"
        return f"{self.scenario}{variant}{trial}"

    @property
    def group(self) -> str:
        """What is summarised together: a suite under one variant; the default variant is the bare suite."""
        return self.suite if self.variant == "default" else f"{self.suite}-{self.variant}"

    def __str__(self) -> str:
        return f"{self.suite}[{self.id}]"


def suite_of(group: str, variant: str) -> str:
    """The suite of a `RolloutKey.group`."""
    return group if variant == "default" else group.removesuffix(f"-{variant}")


class Chunk(NamedTuple):
    """One event of a streamed answer, as it arrived at the tap."""

    at_ns: int  # monotonic nanoseconds
    kind: str  # role | content | reasoning | tool_call | finish | usage | other
    own_stamp: bool = True  # False when a later event of the same read shares this stamp
    lag_ns: int | None = None  # how long it lay in the kernel before the tap read it; None for stamps taken in user space
    tokens: int | None = None  # completion tokens up to here, from servers that count them in every event


LARGEST_SCORE = 1e15  # every whole number up to it is exact, and squares and their sums are finite


def is_score(value: float) -> bool:
    """Whether statistics could use it; raises TypeError for what is no number."""
    return math.fabs(value) <= LARGEST_SCORE


class Score(float):
    """A number with its parts (other numbers) and an explanation for the reader of a failure. ValueError: statistics cannot use it."""

    parts: Mapping[str, float]
    explanation: str

    def __new__(cls, value: float, parts: Mapping[str, float] | None = None, explanation: str = "") -> Self:
        if not is_score(value):
            raise ValueError(f"{value!r} is not a score, which is a number between -{LARGEST_SCORE:g} and {LARGEST_SCORE:g}")
        self = super().__new__(cls, value)
        self.parts = dict(parts or {})
        self.explanation = explanation
        return self

    def __repr__(self) -> str:
        return f"{float(self):.3f}"

    def __reduce__(self) -> tuple[type[Score], tuple[float, Mapping[str, float], str]]:
        return Score, (float(self), self.parts, self.explanation)

    def to_dict(self) -> Json:
        return {"value": float(self), "parts": dict(self.parts), "explanation": self.explanation}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Score:
        return cls(data["value"], data.get("parts"), data.get("explanation", ""))


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


@dataclass(frozen=True)
class Access:
    """How somebody is to call a model through the tap, under a token of his own."""

    upgrade: bool | None = None  # whether calls that do not stream travel as streams; None: as each of them asks
    keep: bool = False  # whether the records of the calls keep what the model said
    judge: bool = False  # the calls judge an agent's work, and are no part of it
    calls: int | None = None  # so many calls are relayed, later ones are refused; None: all
    endpoint: Json | None = None  # url, model, api_key (name of an environment variable); None: the backend under test


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
    user_turn: int = 1  # which message of the user it answers, counted from 1
    started_ns: int | None = None  # monotonic nanoseconds; None when nobody took the time
    ended_ns: int | None = None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ToolCall:
        return cls(**data)


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
    server: Json | None = None  # what the server told of the call: `worker_id` and `timing` of Dynamo
    said: Json | None = None  # what the model said, `text` and `tool_calls` of {id, name, arguments}, where it is asked to be kept

    @property
    def output(self) -> list[Chunk]:
        """The chunks with text or a tool call, in the order in which they came."""
        return [chunk for chunk in self.chunks if chunk.kind in OUTPUT_KINDS]

    def to_dict(self) -> Json:
        data = {each.name: getattr(self, each.name) for each in fields(self)}
        data["chunks"] = [[*chunk] for chunk in self.chunks]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LLMCall:
        return cls(**{**data, "chunks": tuple(Chunk(*chunk) for chunk in data.get("chunks", ()))})


@dataclass(frozen=True)
class Answer:
    """What an agent hands back when it is done."""

    text: str


@dataclass(frozen=True)
class Draft:
    """One try of an agent that judges its own work. The rollout's own calls, answer and scores are those of one of its drafts."""

    number: int  # counted from 1
    status: str  # ok | limit | agent_error
    reason: str = ""  # why it is not `ok`
    answer: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    # what the judge said: `is_sufficient`, `confidence` (0 to 1), `reasoning`, `suggestions`, `missing_steps`, and `judge`, which has
    # `model`, `prompt_sha256` (of the prompt's template and the form) and `parameters`; None of a draft that was not judged
    verdict: Json | None = None
    accepted: bool = False  # whether the judge was content
    chosen: bool = False  # whether it is the one that counts
    scores: Mapping[str, Score] = field(default_factory=dict)
    started_ns: int = 0  # monotonic nanoseconds
    ended_ns: int = 0

    def to_dict(self) -> Json:
        data = {each.name: getattr(self, each.name) for each in fields(self)}
        data["tool_calls"] = [asdict(call) for call in self.tool_calls]
        data["scores"] = {name: score.to_dict() for name, score in self.scores.items()}
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Draft:
        calls, scores = map(ToolCall.from_dict, data["tool_calls"]), data["scores"].items()
        return cls(**{**data, "tool_calls": tuple(calls), "scores": {name: Score.from_dict(score) for name, score in scores}})


@dataclass(frozen=True)
class Program:
    """One run of the program of a command agent."""

    exit_code: int  # below 0: the signal that ended it
    started_ns: int  # monotonic nanoseconds
    ended_ns: int
    cpu_s: float  # of all its processes
    peak_mib: float  # of the largest of them

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Program:
        return cls(**data)


@dataclass(frozen=True)
class Attempt:
    """One attempt at a rollout. Where another one followed it measured nothing, but what it asked of the backend was asked all the same."""

    attempt: int  # counted from 1
    status: str  # one of STATUSES
    reason: str = ""  # why it is not `ok`
    session: int = 1  # which session of its run it ran in: two sessions' clocks have nothing in common
    started_ns: int = 0  # monotonic nanoseconds
    ended_ns: int = 0
    calls: tuple[LLMCall, ...] = ()  # of the agent
    judge_calls: tuple[LLMCall, ...] = ()

    def to_dict(self) -> Json:
        data = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**data, **{name: [call.to_dict() for call in data[name]] for name in ("calls", "judge_calls")}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Attempt:
        return cls(**{**data, **{name: tuple(map(LLMCall.from_dict, data[name])) for name in ("calls", "judge_calls")}})


@dataclass(frozen=True)
class Rollout:
    """The frozen record of one finished agent run on one scenario. The fields up to `kind` are what an index of a journal reads."""

    suite: str
    scenario: str
    variant: str
    trial: int  # counted from 1
    status: str  # one of STATUSES
    reason: str = ""  # why it is not `ok`: which limit, which error
    session: int = 1  # which session of its run it ran in, counted from 1: two sessions' clocks have nothing in common
    # hashes of [what it depends on](resume.md#what-makes-it-refuse), of 16 hexadecimal digits: `scenario`, `agent`, `prompts`, `backend`;
    # `scorers`: score -> of how it came about. Empty texts for calls by hand, which depend on the backend alone
    content: Json = field(default_factory=dict)
    kind: str = "scenario"  # scenario | adhoc (a test used `llm` by hand) | primer (a first call that fills the prefix cache)
    cluster: str | None = None  # of its scenario: those of one cluster are not independent
    attempt: int = 1  # which attempt this is, counted from 1
    earlier_attempts: tuple[Attempt, ...] = ()  # those before it, of earlier sessions too
    started_at: float = 0.0  # seconds, time.time(); for people, not for arithmetic
    started_ns: int = 0  # monotonic nanoseconds
    ended_ns: int = 0  # monotonic nanoseconds
    calls: tuple[LLMCall, ...] = ()  # of the agent, in this attempt
    judge_calls: tuple[LLMCall, ...] = ()  # of judges in this attempt, its own and those of scorers; no timing counts them
    drafts: tuple[Draft, ...] = ()  # of an agent that judges its own work
    tool_calls: tuple[ToolCall, ...] = ()
    programs: tuple[Program, ...] = ()  # that a command agent ran, one for each message of the user
    # the labels: {tool, parameters, goal}; [those with several right values](bfcl.md#labels) have `accepts` and `optional` for `parameters`
    expected: tuple[Json, ...] = ()
    answer: str = ""
    turns: int = 0  # LLM calls that the agent made
    messages: tuple[Json, ...] = ()  # the transcript in Chat Completions form
    scores: Mapping[str, Score] = field(default_factory=dict)
    score_errors: Mapping[str, str] = field(default_factory=dict)  # scorer -> why its score is missing
    settings: Json = field(default_factory=dict)  # the agent's settings, sampling parameters among them
    log: str = ""  # what the agent logged and printed

    @property
    def key(self) -> RolloutKey:
        return RolloutKey(self.suite, self.scenario, self.variant, self.trial)

    @property
    def duration_s(self) -> float:
        """Seconds from start to end of the last attempt."""
        return (self.ended_ns - self.started_ns) / 1e9

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """All of them, this one last."""
        times = (self.session, self.started_ns, self.ended_ns)
        return (*self.earlier_attempts, Attempt(self.attempt, self.status, self.reason, *times, self.calls, self.judge_calls))

    @property
    def all_calls(self) -> tuple[LLMCall, ...]:
        """The agent's LLM calls of all attempts: whatever became of an attempt, the backend served it."""
        return tuple(call for attempt in self.attempts for call in attempt.calls)

    @property
    def evaluable(self) -> bool:
        return self.status in EVALUABLE

    @property
    def tools(self) -> list[str]:
        """Names of the tools called, in order, repeats included."""
        return [call.name for call in self.tool_calls]

    @property
    def expected_tools(self) -> list[str]:
        """Names of the tools that the labels expect, in order."""
        return [str(call["tool"]) for call in self.expected]

    def score(self, name: str) -> Score:
        """The score called `name`; raises NoScore (ScorerFailed, where that is why), with the reason, when it was not measured."""
        __tracebackhide__ = True
        if name in self.scores:
            return self.scores[name]
        if not self.evaluable:
            raise NoScore(f"{self.key}: no {name}, the rollout ended as {self.status}: {self.reason}")
        if name in self.score_errors:
            raise ScorerFailed(str(self.key), f"no {name}, the scorer failed: {self.score_errors[name]}")
        raise NoScore(f"{self.key}: no score {name!r}; this suite measures: {', '.join(sorted(self.scores)) or 'none'}")

    def to_dict(self) -> Json:
        data = {each.name: getattr(self, each.name) for each in fields(self)}
        data["calls"] = [call.to_dict() for call in self.calls]
        data["judge_calls"] = [call.to_dict() for call in self.judge_calls]
        data["earlier_attempts"] = [attempt.to_dict() for attempt in self.earlier_attempts]
        data["drafts"] = [draft.to_dict() for draft in self.drafts]
        data["tool_calls"] = [asdict(call) for call in self.tool_calls]
        data["programs"] = [asdict(program) for program in self.programs]
        data["scores"] = {name: score.to_dict() for name, score in self.scores.items()}
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Rollout:
        return cls(
            **{
                **data,
                "calls": tuple(map(LLMCall.from_dict, data.get("calls", ()))),
                "judge_calls": tuple(map(LLMCall.from_dict, data.get("judge_calls", ()))),
                "earlier_attempts": tuple(map(Attempt.from_dict, data.get("earlier_attempts", ()))),
                "drafts": tuple(map(Draft.from_dict, data.get("drafts", ()))),
                "tool_calls": tuple(map(ToolCall.from_dict, data.get("tool_calls", ()))),
                "programs": tuple(map(Program.from_dict, data.get("programs", ()))),
                "scores": {name: Score.from_dict(score) for name, score in data.get("scores", {}).items()},
                **{name: tuple(data.get(name, ())) for name in ("expected", "messages")},
            }
        )

    @classmethod
    def from_json(cls, line: str | bytes) -> Rollout:
        return cls.from_dict(json.loads(line))
