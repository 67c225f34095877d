"""The record of a rollout: its key, attempts, calls, answer, verification and scores, the scales of the scores, and missed thresholds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from pytest_agentbench.errors import NoScore, RolloutFailed, ScorerFailed
from pytest_agentbench.records.call import Json, LLMCall, Stamp, ToolCall

BETTER = ("higher", "lower")


@dataclass(frozen=True)
class Scale:
    """The scale that a scorer declares for its scores: direction, range and unit. A scorer that declares nothing has UNDECLARED."""

    better: str = "higher"  # direction of better values: `higher` or `lower`
    least: float | None = None  # the smallest possible value; null if there is none or it is unknown
    greatest: float | None = None  # the greatest possible value; null if there is none or it is unknown
    unit: str = ""  # unit of the values, such as `mistakes`; empty if the scorer declares none
    declared: bool = False  # whether the scorer declares a scale; if not, higher values are assumed to be better
    threshold: float | None = None  # default threshold of a rollout, for suites that set none; null if there is none

    @property
    def falling(self) -> bool:
        """Whether lower values are better."""
        return self.better == "lower"

    @property
    def worst(self) -> float | None:
        """The worst possible value. None if there is none or it is unknown."""
        return self.greatest if self.falling else self.least

    @property
    def best(self) -> float | None:
        """The best possible value. None if there is none or it is unknown."""
        return self.least if self.falling else self.greatest

    @property
    def limits(self) -> tuple[float, float] | None:
        """The smallest and the greatest possible value. None unless both are known."""
        return None if self.least is None or self.greatest is None else (self.least, self.greatest)

    @property
    def width(self) -> float | None:
        """The greatest possible difference between two values. None unless both ends of the range are known."""
        return None if self.limits is None else self.limits[1] - self.limits[0]

    @property
    def sign(self) -> str:
        """The operator between a value that passes and its threshold: `<=` or `>=`."""
        return "<=" if self.falling else ">="

    def contains(self, value: float) -> bool:
        """Returns whether a value is in the range of the scale."""
        return (self.least is None or self.least <= value) and (self.greatest is None or value <= self.greatest)

    def is_comparable(self, other: Scale) -> bool:
        """Returns whether values on both scales can be compared: direction and range are equal."""
        return (self.better, self.least, self.greatest) == (other.better, other.least, other.greatest)

    def loss(self, value: float) -> float:
        """Returns a number that is greater for a worse value."""
        return value if self.falling else -value

    @property
    def range_text(self) -> str:
        """The range as text: `between 0 and 1`, `0 or more`, `0 or less`, or `any number` if both ends are unknown."""
        if limits := self.limits:
            return f"between {limits[0]:g} and {limits[1]:g}"
        if self.least is not None:
            return f"{self.least:g} or more"
        return "any number" if self.greatest is None else f"{self.greatest:g} or less"

    @property
    def text(self) -> str:
        """The scale as text, for example `lower is better, 0 or more, mistakes`."""
        if not self.declared:
            return "higher is taken as better, because the scorer does not declare it; range unknown"
        return ", ".join(filter(None, (f"{self.better} is better", self.range_text, self.unit)))


UNDECLARED = Scale()

#: The scale of scores of other tools that are shares.
SHARE = Scale(least=0.0, greatest=1.0, declared=True)


def scale_in(scales: Mapping[str, Scale], score: str) -> Scale:
    """Returns the scale of a score from `scales`, or UNDECLARED if they lack it."""
    return scales.get(score, UNDECLARED)


#: Floats represent all integers up to this value exactly, and sums of squares stay finite.
LARGEST_SCORE = 1e15


def is_score(value: float) -> bool:
    """Returns whether statistics can use the value: it is finite and not too large. Raises TypeError if it is not a number."""
    return math.fabs(value) <= LARGEST_SCORE


class Score(float):
    """A number with named parts (other numbers) and an explanation for people who read a failure.

    The constructor raises ValueError if the number is not finite or is larger than LARGEST_SCORE.
    """

    parts: Mapping[str, float]
    explanation: str

    def __new__(cls, value: float, parts: Mapping[str, Any] | None = None, explanation: str = "") -> Self:
        if not is_score(value):
            raise ValueError(f"{value!r} is not a score, which is a number between -{LARGEST_SCORE:g} and {LARGEST_SCORE:g}")
        self = super().__new__(cls, value)
        self.parts = dict(parts or {})
        self.explanation = explanation
        return self

    @property
    def value(self) -> float:
        """The number without its parts."""
        return float(self)

    def __repr__(self) -> str:
        return f"{float(self):.3f}"

    def __reduce__(self) -> tuple[type[Score], tuple[float, Mapping[str, float], str]]:
        return Score, (float(self), self.parts, self.explanation)


class RolloutKey(NamedTuple):
    """Identifies one rollout: suite, scenario, variant, and number of the trial."""

    suite: str
    scenario: str
    variant: str = "default"
    trial: int = 1  # counted from 1

    @property
    def id(self) -> str:
        """The pytest parameter id. The first trial of the default variant has the id of the scenario."""
        variant = "" if self.variant == "default" else f"-{self.variant}"
        trial = "" if self.trial == 1 else f"-t{self.trial}"
        return f"{self.scenario}{variant}{trial}"

    @property
    def group(self) -> str:
        """The name under which results are summarised: `suite-variant`, or `suite` for the default variant."""
        return self.suite if self.variant == "default" else f"{self.suite}-{self.variant}"

    def __str__(self) -> str:
        return f"{self.suite}[{self.id}]"


def suite_of(group: str, variant: str) -> str:
    """Returns the suite of a `RolloutKey.group`."""
    return group if variant == "default" else group.removesuffix(f"-{variant}")


def arm_of(variant: str) -> str:
    """Returns the arm (setting under comparison) of a variant: the last part of its name."""
    return variant.rpartition("-")[2]


@dataclass(frozen=True)
class Verification:
    """The result of a task's verifier, which runs after the agent. If it cannot start, the rollout ends as `infra_error`."""

    reward: float  # main reward of the task; 0 if the agent did nothing
    rewards: Mapping[str, float] = field(default_factory=dict)  # name -> reward, for all rewards of the verifier
    exit_code: int | None = None  # exit code of the verifier, for information; None if it was killed
    output: str = ""  # output of the verifier, shortened in the middle
    first_failure: str = ""  # name of the first check that failed; empty if the verifier reports none
    started_ns: Stamp = 0  # start, monotonic nanoseconds
    ended_ns: Stamp = 0  # end, monotonic nanoseconds
    sandbox: str = ""  # kind of sandbox, with limits that it could not enforce: `docker`, or `docker, where ...`
    skipped: str = ""  # name of the first skipped check, or the number of skipped checks; empty if the verifier reports none
    mode: str = "shared"  # `separate` if the verifier had its own sandbox, `shared` if it ran in the sandbox of the agent
    tampered: str = ""  # one sentence on how the agent manipulated the verification, which makes the reward 0; empty if it did not
    changed: tuple[str, ...] | None = ()  # files that the agent changed and a shared verifier may use, at most 50; null if not compared


#: All final statuses of a rollout. Only `infra_error` is retried, and only the statuses in EVALUABLE have scores.
STATUSES = ("ok", "limit", "agent_error", "infra_error", "cancelled")
EVALUABLE = frozenset({"ok", "limit"})


@dataclass(frozen=True)
class Answer:
    """The final answer of an agent."""

    text: str


@dataclass(frozen=True)
class Draft:
    """One draft of an agent that judges its own work. Tool calls, answer and scores of the rollout are those of the chosen draft."""

    number: int  # number of the draft, counted from 1
    status: str  # how the draft ended: ok | limit | agent_error
    reason: str = ""  # reason for a status other than `ok`
    answer: str = ""  # answer of the agent
    tool_calls: tuple[ToolCall, ...] = ()  # tool calls of the draft, in order
    # verdict of the judge: `is_sufficient`, `confidence` (0 to 1), `reasoning`, `suggestions`, `missing_steps`, and `judge` with
    # `model`, `prompt_sha256` (of the prompt template and the form) and `parameters`; None if the draft was not judged
    verdict: Json | None = None
    final_state: Json | None = None  # state of the tools after the draft; None if they are not executed or have no state
    accepted: bool = False  # whether the judge accepted the draft
    chosen: bool = False  # whether this draft is the result of the rollout
    scores: Mapping[str, Score] = field(default_factory=dict)  # name -> score
    started_ns: Stamp = 0  # start, monotonic nanoseconds
    ended_ns: Stamp = 0  # end, monotonic nanoseconds


@dataclass(frozen=True)
class Program:
    """One run of the program of a command agent."""

    exit_code: int  # exit code; below 0 the number of the signal that ended the program
    started_ns: Stamp  # start, monotonic nanoseconds
    ended_ns: Stamp  # end, monotonic nanoseconds
    cpu_s: float  # CPU seconds of all its processes
    peak_mib: float  # peak memory of its largest process, MiB


@dataclass(frozen=True)
class Attempt:
    """One attempt at a rollout. Only the last one yields scores, but the calls of all attempts were load on the backend."""

    attempt: int  # number of the attempt, counted from 1
    status: str  # [status](metrics.md#status) of the attempt
    reason: str = ""  # reason for a status other than `ok`
    session: int = 1  # number of the session, counted from 1; times of different sessions cannot be compared
    started_ns: Stamp = 0  # start, monotonic nanoseconds
    ended_ns: Stamp = 0  # end, monotonic nanoseconds
    calls: tuple[LLMCall, ...] = ()  # calls that the timings include: to the backend under test, except those of judges
    other_calls: tuple[LLMCall, ...] = ()  # calls of judges, and calls to other endpoints
    node: str = ""  # [node worker](nodes.md) that made the attempt, such as `w3`; empty for the machine of the session


@dataclass(frozen=True)
class Rollout:
    """The frozen record of a finished rollout: one run of an agent on one scenario.

    An index of a journal reads only the fields up to `kind`, so they come first.
    """

    suite: str  # name of the suite
    scenario: str  # id of the scenario
    variant: str  # name of the variant, or `default`
    trial: int  # number of the trial, counted from 1
    status: str  # [status](metrics.md#status) of the rollout
    reason: str = ""  # reason for a status other than `ok`: the limit or the error
    session: int = 1  # number of the session that ran it, counted from 1; times of different sessions cannot be compared
    # hashes, of 16 hexadecimal digits, of [what the rollout depends on](resume.md#what-makes-it-refuse): `scenario`, `agent`, `prompts`,
    # `backend`, and `scorers` (score -> hash of its scorer). All but `backend` are empty for calls by hand
    content: Json = field(default_factory=dict)
    kind: str = "scenario"  # scenario | adhoc (a test used `llm` by hand) | primer (a first call before a block, not measured)
    cluster: str | None = None  # cluster of the scenario, whose scenarios are not independent; None if the data have no clusters
    attempt: int = 1  # number of the last attempt, counted from 1
    earlier_attempts: tuple[Attempt, ...] = ()  # the attempts before the last one, also of earlier sessions
    node: str = ""  # [node worker](nodes.md) that made the last attempt, such as `w3`; empty for the machine of the session
    started_at: float = 0.0  # start of the last attempt in seconds since 1970, for display only
    started_ns: Stamp = 0  # start of the last attempt, monotonic nanoseconds
    ended_ns: Stamp = 0  # end of the last attempt, monotonic nanoseconds
    calls: tuple[LLMCall, ...] = ()  # calls of the last attempt that the timings include: to the backend under test, except those of judges
    # other calls of the last attempt, which no timing includes: calls to other endpoints, and calls of judges (of the agent and of scorers)
    other_calls: tuple[LLMCall, ...] = ()
    drafts: tuple[Draft, ...] = ()  # drafts of an agent that judges its own work; empty for other agents
    tool_calls: tuple[ToolCall, ...] = ()  # tool calls of the last attempt, in order
    final_state: Json | None = None  # final state of [the tools](tools.md); None if they are not executed or have no state
    programs: tuple[Program, ...] = ()  # programs that a command agent ran, one for each user message
    sandbox: str = ""  # [kind of sandbox](sandboxes.md#without-docker) that ran programs of a model; empty without any, and for tasks
    verification: Verification | None = None  # verification of a task that ran in a sandbox; None without one
    # labels of the scenario: {tool, parameters, goal}, or [with several right values](bfcl.md#labels) `accepts` and `optional` instead of
    # `parameters`
    expected: tuple[Json, ...] = ()
    reference: str | None = None  # right answer: `answer` in the `metadata` of the scenario, or the first of several; None if there is none
    answer: str = ""  # answer of the agent; empty without one
    turns: int = 0  # LLM calls of the agent itself, without those of roles
    messages: tuple[Json, ...] = ()  # transcript in the form of Chat Completions; empty in the file if `conversation` is set
    # id in [messages.jsonl](conversations.md) of the last message of the transcript; empty if the transcript is in `messages`
    conversation: str = ""
    scores: Mapping[str, Score] = field(default_factory=dict)  # name -> score
    score_errors: Mapping[str, str] = field(default_factory=dict)  # score -> why it is missing
    settings: Json = field(default_factory=dict)  # settings of the agent, with its sampling parameters
    log: str = ""  # log messages and printed output of the agent

    @property
    def key(self) -> RolloutKey:
        return RolloutKey(self.suite, self.scenario, self.variant, self.trial)

    @property
    def duration_s(self) -> float:
        """The duration of the last attempt in seconds."""
        return (self.ended_ns - self.started_ns) / 1e9

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """All attempts, the last one included."""
        times = (self.session, self.started_ns, self.ended_ns)
        return (*self.earlier_attempts, Attempt(self.attempt, self.status, self.reason, *times, self.calls, self.other_calls, self.node))

    @property
    def all_calls(self) -> tuple[LLMCall, ...]:
        """The `calls` of all attempts. Failed attempts are included, because the backend answered their calls too."""
        return tuple(call for attempt in self.attempts for call in attempt.calls)

    @property
    def evaluable(self) -> bool:
        return self.status in EVALUABLE

    @property
    def tools(self) -> list[str]:
        """The names of the called tools, in order and with repetitions."""
        return [call.name for call in self.tool_calls]

    @property
    def steps_ns(self) -> list[int]:
        """The ends of the steps in monotonic nanoseconds. A step is a turn in which a tool ran; it ends with the last tool."""
        done: dict[int, int] = {}
        for call in self.tool_calls:
            if call.ran and call.ended_ns is not None:
                done[call.turn] = max(call.ended_ns, done.get(call.turn, 0))
        return sorted(done.values())

    @property
    def expected_tools(self) -> list[str]:
        """The names of the tools that the agent should call according to the data set, in order."""
        return [str(call["tool"]) for call in self.expected]

    def score(self, name: str) -> Score:
        """Returns the score called `name`.

        Raises RolloutFailed if the rollout has no scores, ScorerFailed if the scorer failed, and NoScore if the name is unknown.
        """
        __tracebackhide__ = True
        if name in self.scores:
            return self.scores[name]
        if not self.evaluable:
            raise RolloutFailed(str(self.key), name, self.status, self.reason)
        if name in self.score_errors:
            raise ScorerFailed(str(self.key), name, self.score_errors[name])
        raise NoScore(f"{self.key}: no score {name!r}; this suite measures: {', '.join(sorted(self.scores)) or 'none'}", name)


def scenario_thresholds(thresholds: Mapping[str, float]) -> dict[str, float]:
    """Returns the thresholds that hold for each scenario, which tests apply: `tsq: 0.5`, but not `tsq.mean: 0.8`, which is a rule."""
    return {name: limit for name, limit in thresholds.items() if name.rpartition(".")[2] != "mean"}


def missed_scores(rollout: Rollout, thresholds: Mapping[str, float], scales: Mapping[str, Scale]) -> list[str]:
    """Returns the scores of a rollout that are worse than their threshold for each scenario, or missing, in the order of `thresholds`."""
    return [name for name, limit in scenario_thresholds(thresholds).items() if _misses(rollout, name, limit, scale_in(scales, name))]


def _misses(rollout: Rollout, name: str, limit: float, scale: Scale) -> bool:
    return name not in rollout.scores or scale.loss(rollout.scores[name]) > scale.loss(limit)
