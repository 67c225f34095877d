"""The name of a rollout, what it did and when, what a verifier said of it, and how good it was: scores, which are numbers that
statistics can use, and their scales.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from pytest_agentbench.errors import NoScore, ScorerFailed
from pytest_agentbench.records.call import Json, LLMCall, ToolCall

BETTER = ("higher", "lower")


@dataclass(frozen=True)
class Scale:
    """What a scorer declares of its scores. The scale of a scorer that declares nothing is UNDECLARED."""

    better: str = "higher"  # `higher` or `lower`
    least: float | None = None  # the smallest possible value; null: there is none, or it is unknown
    greatest: float | None = None  # the greatest possible value; null: there is none, or it is unknown
    unit: str = ""  # of the values, such as `mistakes`; empty if the scorer names none
    declared: bool = False  # whether the scorer declares it; else higher is taken as better
    threshold: float | None = None  # of a rollout, for suites that set none; null: there is none

    @property
    def falling(self) -> bool:
        """Whether lower values are better."""
        return self.better == "lower"

    @property
    def worst(self) -> float | None:
        """The worst possible value; None if there is none or it is unknown."""
        return self.greatest if self.falling else self.least

    @property
    def best(self) -> float | None:
        """The best possible value; None if there is none or it is unknown."""
        return self.least if self.falling else self.greatest

    @property
    def limits(self) -> tuple[float, float] | None:
        """The least and the greatest value; None unless both are known."""
        return None if self.least is None or self.greatest is None else (self.least, self.greatest)

    @property
    def width(self) -> float | None:
        """The greatest possible difference of two values; None unless both ends are known."""
        return None if self.limits is None else self.limits[1] - self.limits[0]

    @property
    def sign(self) -> str:
        """The relation of a value that is good enough to its threshold."""
        return "<=" if self.falling else ">="

    def contains(self, value: float) -> bool:
        """Returns whether a scorer with this scale may give a value."""
        return (self.least is None or self.least <= value) and (self.greatest is None or value <= self.greatest)

    def is_comparable(self, other: Scale) -> bool:
        """Returns whether values on both scales mean the same: the direction and the range are equal."""
        return (self.better, self.least, self.greatest) == (other.better, other.least, other.greatest)

    def loss(self, value: float) -> float:
        """Returns a number that is greater for a worse value."""
        return value if self.falling else -value

    @property
    def range_text(self) -> str:
        """`between 0 and 1`, `0 or more`, `0 or less`; `any number` without a known end."""
        if limits := self.limits:
            return f"between {limits[0]:g} and {limits[1]:g}"
        if self.least is not None:
            return f"{self.least:g} or more"
        return "any number" if self.greatest is None else f"{self.greatest:g} or less"

    @property
    def text(self) -> str:
        """`lower is better, 0 or more, mistakes`: the scale in a reader's words."""
        if not self.declared:
            return "higher is taken as better, because the scorer does not declare it; range unknown"
        return ", ".join(filter(None, (f"{self.better} is better", self.range_text, self.unit)))


UNDECLARED = Scale()

#: Of scores of other tools that are shares.
SHARE = Scale(least=0.0, greatest=1.0, declared=True)


def scale_in(scales: Mapping[str, Scale], score: str) -> Scale:
    """Returns the scale of a score, UNDECLARED if it is not among the scales."""
    return scales.get(score, UNDECLARED)


LARGEST_SCORE = 1e15  # every whole number up to it is exact, and squares and their sums are finite


def is_score(value: float) -> bool:
    """Whether statistics could use it; raises TypeError for what is no number."""
    return math.fabs(value) <= LARGEST_SCORE


class Score(float):
    """A number with its parts (other numbers) and an explanation for the reader of a failure. ValueError: statistics cannot use it."""

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


def arm_of(variant: str) -> str:
    """The arm that a variant is under."""
    return variant.rpartition("-")[2]


@dataclass(frozen=True)
class Verification:
    """One verification, made after the agent was done. A task whose verifier could not be started has none: it ends as `infra_error`."""

    reward: float  # the task's main reward; 0 where nothing was done
    rewards: Mapping[str, float] = field(default_factory=dict)  # all that the verifier wrote, by name
    exit_code: int | None = None  # of the verifier's program, for the reader only; None: it was killed
    output: str = ""  # of the verifier, cut in the middle
    first_failure: str = ""  # name of the first check that failed, where the verifier says it
    started_ns: int = 0  # monotonic nanoseconds
    ended_ns: int = 0
    sandbox: str = ""  # which kind ran it, and which of its limits could not be kept: `docker`, or `docker, where ...`
    skipped: str = ""  # name of the first check that was skipped, or how many were, where the verifier says it
    mode: str = "shared"  # `separate`: the verifier ran in a sandbox in which the agent never was; `shared`: it ran in the agent's
    tampered: str = ""  # how the verification was sabotaged, one sentence; the reward is 0 then. Empty: it was not
    changed: tuple[str, ...] | None = ()  # files that a shared verifier may use and the agent changed, 50 at most; null: not compared


#: Every way a rollout can end. Only `infra_error` is tried again; only `EVALUABLE` ones carry scores.
STATUSES = ("ok", "limit", "agent_error", "infra_error", "cancelled")
EVALUABLE = frozenset({"ok", "limit"})


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
    final_state: Json | None = None  # of the tools, where they are carried out
    accepted: bool = False  # whether the judge was content
    chosen: bool = False  # whether it is the one that counts
    scores: Mapping[str, Score] = field(default_factory=dict)
    started_ns: int = 0  # monotonic nanoseconds
    ended_ns: int = 0


@dataclass(frozen=True)
class Program:
    """One run of the program of a command agent."""

    exit_code: int  # below 0: the signal that ended it
    started_ns: int  # monotonic nanoseconds
    ended_ns: int
    cpu_s: float  # of all its processes
    peak_mib: float  # of the largest of them


@dataclass(frozen=True)
class Attempt:
    """One attempt at a rollout. Where another one followed it measured nothing, but what it asked of the backend was asked all the same."""

    attempt: int  # counted from 1
    status: str  # one of STATUSES
    reason: str = ""  # why it is not `ok`
    session: int = 1  # which session of its run it ran in: two sessions' clocks have nothing in common
    started_ns: int = 0  # monotonic nanoseconds
    ended_ns: int = 0
    calls: tuple[LLMCall, ...] = ()  # of the agent, to the backend under test
    other_calls: tuple[LLMCall, ...] = ()


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
    calls: tuple[LLMCall, ...] = ()  # of the agent, to the backend under test, in this attempt; those of roles there are among them
    # the others of this attempt: of roles that other endpoints play, and of judges, its own and those of scorers; no timing counts them
    other_calls: tuple[LLMCall, ...] = ()
    drafts: tuple[Draft, ...] = ()  # of an agent that judges its own work
    tool_calls: tuple[ToolCall, ...] = ()
    final_state: Json | None = None  # of [the tools](tools.md), where they are carried out and have a state
    programs: tuple[Program, ...] = ()  # that a command agent ran, one for each message of the user
    sandbox: str = ""  # [kind](sandboxes.md#without-docker) in which programs of a model ran, where the scenario is no task; empty: none
    verification: Verification | None = None  # of a task that was carried out in a sandbox
    # the labels: {tool, parameters, goal}; [those with several right values](bfcl.md#labels) have `accepts` and `optional` for `parameters`
    expected: tuple[Json, ...] = ()
    reference: str | None = None  # the right answer, where the scenario's `metadata` have one under `answer`; of several the first
    answer: str = ""
    turns: int = 0  # LLM calls that the agent made in its own name
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
        return (*self.earlier_attempts, Attempt(self.attempt, self.status, self.reason, *times, self.calls, self.other_calls))

    @property
    def all_calls(self) -> tuple[LLMCall, ...]:
        """The agent's LLM calls to the backend under test, of all attempts: whatever became of an attempt, the backend served it."""
        return tuple(call for attempt in self.attempts for call in attempt.calls)

    @property
    def evaluable(self) -> bool:
        return self.status in EVALUABLE

    @property
    def tools(self) -> list[str]:
        """Names of the tools called, in order, repeats included."""
        return [call.name for call in self.tool_calls]

    @property
    def steps_ns(self) -> list[int]:
        """When its steps ended, monotonic nanoseconds. A step is a round of the agent in which a tool ran, and ends with the last tool."""
        done: dict[int, int] = {}
        for call in self.tool_calls:
            if call.ran and call.ended_ns is not None:
                done[call.turn] = max(call.ended_ns, done.get(call.turn, 0))
        return sorted(done.values())

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
