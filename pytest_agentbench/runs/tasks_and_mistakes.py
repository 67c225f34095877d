"""Counts the results of tasks (how they ended, and their resources) and the mistakes of agents (with which tools)."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from statistics import fmean

from pytest_agentbench.metrics import timings
from pytest_agentbench.records import Rollout
from pytest_agentbench.records.rollout import Verification
from pytest_agentbench.scorers.mistakes import KINDS, Mistake, mistakes

TASK_EXAMPLES = 3  # number of examples for each kind of failure
TAMPERED = "(the verification was tampered with)"
SOLVED = 1.0  # reward of a solved task


@dataclass(frozen=True)
class TaskResult:
    """The results of one task, with means over its verified trials."""

    scenario: str  # id of the scenario
    trials: int  # verified trials
    solved: int  # verified trials with a reward of 1
    reward: float  # mean reward
    commands: float  # mean number of commands that the agent ran in the sandbox
    tokens: float | None  # mean number of tokens, prompts and answers; null if a successful call has no count of prompt tokens
    seconds: float  # mean duration of a trial, seconds
    sandbox_s: float  # mean time in which commands ran, seconds
    verifier_s: float  # mean duration of the verifier, seconds
    verifier: str = "shared"  # [mode of the verifier](terminal-agent.md#the-verifier): `shared` or `separate`
    changed: int = 0  # trials whose agent changed files that a shared verifier may use
    tampered: int = 0  # trials whose agent manipulated the verification, so that their reward is 0


@dataclass(frozen=True)
class TaskFailure:
    """A kind of failure of trials that did not solve their task."""

    end: str  # how the agent ended: `ok`, `agent_error`, `infra_error`, `cancelled`, or the limit: `limit: time`, `limit: iterations`
    check: str  # first failed check of the verifier; empty if it named none or did not run
    rollouts: int  # number of rollouts that failed like this
    examples: tuple[str, ...]  # ids of up to three of these rollouts, the lowest first


@dataclass(frozen=True)
class TasksSummary:
    """The results of tasks that ran [in a sandbox](terminal-agent.md)."""

    tasks: tuple[TaskResult, ...]  # results of each task, by scenario
    failures: tuple[TaskFailure, ...]  # kinds of failures, the most frequent first
    sandboxes: tuple[str, ...] = ()  # [kinds of sandboxes](sandboxes.md#what-a-sandbox-may-use) in which the tasks ran


@dataclass
class _Work:
    """The values of one task's verified trials, from which its TaskResult is computed."""

    rewards: list[float] = field(default_factory=list)
    commands: list[int] = field(default_factory=list)
    tokens: list[int | None] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    sandbox_s: list[float] = field(default_factory=list)
    verifier_s: list[float] = field(default_factory=list)
    modes: set[str] = field(default_factory=set)
    changed: int = 0
    tampered: int = 0


@dataclass
class Tasks:
    """Counts the results of tasks while rollouts are read."""

    work: dict[str, _Work] = field(default_factory=lambda: defaultdict(_Work))
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    sandboxes: set[str] = field(default_factory=set)
    examples: dict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))

    def add(self, rollout: Rollout) -> None:
        verification = rollout.verification
        if verification is not None:
            work = self.work[rollout.scenario]
            self.sandboxes.add(verification.sandbox)
            work.rewards.append(verification.reward)
            work.commands.append(sum(not call.problem for call in rollout.tool_calls))
            work.tokens.append(_tokens(rollout))
            work.seconds.append(rollout.duration_s)
            work.sandbox_s.append(sum((call.ended_ns or 0) - (call.started_ns or 0) for call in rollout.tool_calls) / 1e9)
            work.modes.add(verification.mode)
            work.changed += bool(verification.changed)
            work.tampered += bool(verification.tampered)
            work.verifier_s.append((verification.ended_ns - verification.started_ns) / 1e9)
        if verification is None or verification.reward < SOLVED:
            self._fail(_end(rollout), _check(verification) if verification else "", rollout.key.id)

    def _fail(self, end: str, check: str, id: str) -> None:
        """Counts a failure. Keeps a few rollouts of its kind as examples: the lowest ids, because rollouts end in random order."""
        self.failures[end, check] += 1
        self.examples[end, check] = sorted([*self.examples[end, check], id])[:TASK_EXAMPLES]

    def summary(self) -> TasksSummary | None:
        """Returns the results of all tasks. None if no trial was verified."""
        if not self.work:
            return None
        failures = sorted(self.failures.items(), key=lambda each: (-each[1], each[0]))
        return TasksSummary(
            tuple(_result(scenario, work) for scenario, work in sorted(self.work.items())),
            tuple(TaskFailure(*way, count, tuple(self.examples[way])) for way, count in failures),
            tuple(sorted(filter(None, self.sandboxes))),
        )


def _check(verification: Verification) -> str:
    return TAMPERED if verification.tampered else verification.first_failure


def _result(scenario: str, work: _Work) -> TaskResult:
    tokens = [each for each in work.tokens if each is not None]
    return TaskResult(
        scenario=scenario,
        trials=len(work.rewards),
        solved=sum(reward >= SOLVED for reward in work.rewards),
        reward=fmean(work.rewards),
        commands=fmean(work.commands),
        tokens=fmean(tokens) if len(tokens) == len(work.tokens) else None,
        seconds=fmean(work.seconds),
        sandbox_s=fmean(work.sandbox_s),
        verifier_s=fmean(work.verifier_s),
        verifier=", ".join(sorted(work.modes)),
        changed=work.changed,
        tampered=work.tampered,
    )


def _tokens(rollout: Rollout) -> int | None:
    """Returns the tokens of the last attempt's calls. None if a successful call has no count of prompt tokens."""
    if any(call.error_kind is None and call.prompt_tokens is None for call in rollout.calls):
        return None
    return sum((call.prompt_tokens or 0) + timings.output_tokens(call) for call in rollout.calls)


def _end(rollout: Rollout) -> str:
    """Returns the status of a rollout, for `limit` with the name of the limit, which begins the reason: `limit: time`."""
    return f"limit: {rollout.reason.partition(':')[0]}" if rollout.status == "limit" else rollout.status


EXAMPLES = 3  # number of examples for each kind of mistake
MOST = 10  # number of rows of a table


@dataclass(frozen=True)
class MistakeCount:
    """The number of rollouts with one kind of mistake."""

    kind: str  # [kind of mistake](metrics.md#mistakes)
    rollouts: int  # number of rollouts with this mistake
    examples: tuple[str, ...]  # ids of up to three of these rollouts, the lowest first
    detail: str  # description of the mistake in the first example


@dataclass(frozen=True)
class Confusion:
    """A tool that was called instead of the expected one."""

    expected: str  # name of the expected tool
    actual: str  # name of the called tool
    rollouts: int  # number of rollouts with this confusion


@dataclass(frozen=True)
class ToolMistakes:
    """The mistakes with one tool."""

    tool: str  # name of the tool
    expected: int  # rollouts whose labels expect the tool
    missing: int  # rollouts whose labels expect the tool and that did not call it
    unexpected: int  # rollouts that called the tool although their labels do not expect it
    bad_arguments: int  # rollouts with wrong or malformed arguments for the tool


@dataclass(frozen=True)
class Triage:
    """The [mistakes](metrics.md#mistakes) of a suite's rollouts."""

    rollouts: int  # number of measured rollouts
    faulty: int  # number of measured rollouts with a mistake
    kinds: tuple[MistakeCount, ...]  # kinds of mistakes, the most frequent first
    confused: tuple[Confusion, ...]  # confused tools, at most ten pairs, the most frequent first
    tools: tuple[ToolMistakes, ...]  # mistakes by tool, at most ten, those with the most mistakes first


@dataclass
class MistakeCounts:
    """Counts mistakes while rollouts are read."""

    rollouts: int = 0
    faulty: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    examples: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))  # kind -> id of the rollout -> description
    confused: Counter[tuple[str, str]] = field(default_factory=Counter)
    tools: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))  # tool -> field of ToolMistakes -> rollouts

    def add(self, rollout: Rollout) -> None:
        if not rollout.evaluable and rollout.status != "agent_error":
            return
        made = [*mistakes(rollout)]
        self.rollouts += 1
        self.faulty += bool(made)
        for tool in {*rollout.expected_tools}:
            self.tools[tool]["expected"] += 1
        for kind in dict.fromkeys(each.kind for each in made):
            self.kinds[kind] += 1
            self._keep(kind, rollout.key.id, next(_text(each) for each in made if each.kind == kind))
        self.confused.update({(tool, each.actual) for each in made if each.kind == "wrong tool" for tool in each.expected})
        for tool, what in {fault for each in made for fault in _faults(each)}:
            self.tools[tool][what] += 1

    def _keep(self, kind: str, id: str, detail: str) -> None:
        """Keeps a few rollouts as examples of a kind of mistake: those with the lowest ids, because rollouts end in random order."""
        kept = self.examples[kind]
        kept[id] = detail
        if len(kept) > EXAMPLES:
            del kept[max(kept)]

    def triage(self) -> Triage | None:
        """Returns the mistakes of all rollouts. None if no rollout was measured."""
        if not self.rollouts:
            return None
        order = {kind: place for place, kind in enumerate(KINDS)}
        kinds = sorted(self.kinds.items(), key=lambda each: (-each[1], order[each[0]]))
        confused = sorted(self.confused.items(), key=lambda each: (-each[1], each[0]))
        tools = [_tool(name, counts) for name, counts in self.tools.items()]
        tools = [each for each in tools if _weight(each)]
        return Triage(
            rollouts=self.rollouts,
            faulty=self.faulty,
            kinds=tuple(self._count(kind, rollouts) for kind, rollouts in kinds),
            confused=tuple(Confusion(*pair, rollouts) for pair, rollouts in confused[:MOST]),
            tools=tuple(sorted(tools, key=lambda each: (-_weight(each), each.tool))[:MOST]),
        )

    def _count(self, kind: str, rollouts: int) -> MistakeCount:
        examples = sorted(self.examples[kind].items())
        return MistakeCount(kind, rollouts, tuple(id for id, _ in examples), examples[0][1])


def _tool(name: str, counts: Counter[str]) -> ToolMistakes:
    return ToolMistakes(name, counts["expected"], counts["missing"], counts["unexpected"], counts["bad_arguments"])


def _weight(tool: ToolMistakes) -> int:
    return tool.missing + tool.unexpected + tool.bad_arguments


def _faults(mistake: Mistake) -> list[tuple[str, str]]:
    """Returns each tool that is part of a mistake, with the field of ToolMistakes that counts it."""
    match mistake.kind:
        case "gave up" | "wrong tool" | "missing call" | "extra call":
            return [*((tool, "missing") for tool in mistake.expected), *[(mistake.actual, "unexpected")] * bool(mistake.actual)]
        case "bad argument" | "malformed":
            return [(mistake.actual, "bad_arguments")]
    return []


def _text(mistake: Mistake) -> str:
    """Returns a description of a mistake, such as `get_balance instead of get_history` or `get_balance: account is missing`."""
    match mistake.kind:
        case "wrong tool":
            return f"{mistake.actual} instead of {', '.join(mistake.expected)}"
        case "gave up" | "missing call":
            return f"no {', '.join(mistake.expected)}"
    return ": ".join(part for part in (mistake.actual, mistake.detail) if part)
