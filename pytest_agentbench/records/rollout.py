"""The name of a rollout, what it did and when, how good it was, and what a verifier said of its task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pytest_agentbench.errors import NoScore, ScorerFailed
from pytest_agentbench.records.call import LLMCall, ToolCall
from pytest_agentbench.records.common import Json
from pytest_agentbench.records.score import Score


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
