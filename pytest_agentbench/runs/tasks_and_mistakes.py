"""What came of a suite's rollouts, counted: how its tasks ended and what they took, and which mistakes were made, with which tools."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from statistics import fmean

from pytest_agentbench.metrics import timings
from pytest_agentbench.records import Rollout
from pytest_agentbench.records.rollout import Verification
from pytest_agentbench.scorers.mistakes import KINDS, Mistake, mistakes

TASK_EXAMPLES = 3  # of a way to fail
TAMPERED = "(the verification was tampered with)"
SOLVED = 1.0  # reward


@dataclass(frozen=True)
class TaskResult:
    """One task; means are over its verified trials."""

    scenario: str
    trials: int  # that were verified
    solved: int  # of them, those with a reward of 1
    reward: float  # mean
    commands: float  # mean, that the agent ran in the sandbox
    tokens: float | None  # mean, of prompts and answers; null when a call that went well names no prompt tokens
    seconds: float  # mean, of the agent
    sandbox_s: float  # mean, of them those in which a command ran
    verifier_s: float  # mean, seconds of the verifier
    verifier: str = "shared"  # the [mode](terminal-agent.md#the-verifier) of it: `shared` or `separate`
    changed: int = 0  # trials whose agent changed files that a shared verifier may use
    tampered: int = 0  # trials whose verification was sabotaged, which have a reward of 0


@dataclass(frozen=True)
class TaskFailure:
    """A way in which trials ended without solving their task."""

    end: str  # how the agent ended: `ok`, `agent_error`, `infra_error`, `cancelled`, or which limit: `limit: time`, `limit: iterations`
    check: str  # the first check of the verifier that failed; empty where it named none, or did not run
    rollouts: int
    examples: tuple[str, ...]  # ids of three of them at most, the lowest


@dataclass(frozen=True)
class TasksSummary:
    """The tasks of a suite that were [carried out in a sandbox](terminal-agent.md)."""

    tasks: tuple[TaskResult, ...]  # by scenario
    failures: tuple[TaskFailure, ...]  # the most frequent first
    sandboxes: tuple[str, ...] = ()  # the [kinds](sandboxes.md#what-a-sandbox-may) of sandboxes that they were carried out in


@dataclass
class _Work:
    """Of the verified trials of one task, a value for each."""

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
    """What is counted while rollouts are read."""

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
        """The examples are those with the lowest ids: the order in which rollouts end is chance."""
        self.failures[end, check] += 1
        self.examples[end, check] = sorted([*self.examples[end, check], id])[:TASK_EXAMPLES]

    def summary(self) -> TasksSummary | None:
        """None where nothing was verified."""
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
    """Of the calls of the last attempt; None where nobody knows."""
    if any(call.error_kind is None and call.prompt_tokens is None for call in rollout.calls):
        return None
    return sum((call.prompt_tokens or 0) + timings.output_tokens(call) for call in rollout.calls)


def _end(rollout: Rollout) -> str:
    """The status, and of a limit which one: reasons of limits begin with it."""
    return f"limit: {rollout.reason.partition(':')[0]}" if rollout.status == "limit" else rollout.status


EXAMPLES = 3  # of a kind of mistake
MOST = 10  # rows of a table


@dataclass(frozen=True)
class MistakeCount:
    """How often a kind of mistake was made."""

    kind: str  # one of [these](metrics.md#mistakes)
    rollouts: int  # in which it was made
    examples: tuple[str, ...]  # ids of three of them at most, the lowest
    detail: str  # of the first example


@dataclass(frozen=True)
class Confusion:
    """A tool that was called where another one was expected."""

    expected: str
    actual: str
    rollouts: int


@dataclass(frozen=True)
class ToolMistakes:
    """What went wrong with one tool."""

    tool: str
    expected: int  # rollouts whose labels have it
    missing: int  # of those, rollouts that did not call it
    unexpected: int  # rollouts that called it although their labels do not have it
    bad_arguments: int  # rollouts in which its arguments were wrong or malformed


@dataclass(frozen=True)
class Triage:
    """The [mistakes](metrics.md#mistakes) of a suite's rollouts."""

    rollouts: int  # that were measured
    faulty: int  # of them, those with a mistake
    kinds: tuple[MistakeCount, ...]  # the most frequent first
    confused: tuple[Confusion, ...]  # ten at most, the most frequent first
    tools: tuple[ToolMistakes, ...]  # ten at most, those with the most mistakes first


@dataclass
class MistakeCounts:
    """What is counted while rollouts are read."""

    rollouts: int = 0
    faulty: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    examples: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))  # kind -> rollout -> its detail
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
        """The examples with the lowest ids: the order in which rollouts end is chance."""
        kept = self.examples[kind]
        kept[id] = detail
        if len(kept) > EXAMPLES:
            del kept[max(kept)]

    def triage(self) -> Triage | None:
        """None where nothing was measured."""
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
    """(tool, field of ToolMistakes) for each tool that a mistake is about."""
    match mistake.kind:
        case "gave up" | "wrong tool" | "missing call" | "extra call":
            return [*((tool, "missing") for tool in mistake.expected), *[(mistake.actual, "unexpected")] * bool(mistake.actual)]
        case "bad argument" | "malformed":
            return [(mistake.actual, "bad_arguments")]
    return []


def _text(mistake: Mistake) -> str:
    """`get_balance instead of get_history`, `get_balance: account is missing`."""
    match mistake.kind:
        case "wrong tool":
            return f"{mistake.actual} instead of {', '.join(mistake.expected)}"
        case "gave up" | "missing call":
            return f"no {', '.join(mistake.expected)}"
    return ": ".join(part for part in (mistake.actual, mistake.detail) if part)
