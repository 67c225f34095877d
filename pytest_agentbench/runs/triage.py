"""What went wrong in a suite's rollouts, counted: which kinds of mistakes, which tools, which one instead of which."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from pytest_agentbench.records import Rollout
from pytest_agentbench.scorers.mistakes import KINDS, Mistake, mistakes

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
