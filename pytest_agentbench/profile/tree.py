"""The call tree of agents: rollouts, their attempts, and the calls of these by name, with count and duration.

Concurrent calls count twice, so a total may exceed the wall-clock time. Self time is the time that no call below covers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from pytest_agentbench.metrics.other_tools.measures import called_ns
from pytest_agentbench.metrics.timeline import Span, at_least, total_ns
from pytest_agentbench.records import Attempt, LLMCall, Rollout

EARLIER = "earlier attempts"


@dataclass(frozen=True)
class Branch:
    """A branch of the call tree: all calls with one name below one caller. A tuple of branches lists each caller before its calls."""

    path: tuple[str, ...]  # names from the root, its own last
    count: int
    total_s: float
    self_s: float  # time that no call below covers
    share: float | None  # share of the total of its root; None if that is 0

    @property
    def name(self) -> str:
        return self.path[-1]


@dataclass
class _Node:
    """A branch to which rollouts are still added. Times are in nanoseconds."""

    count: int = 0
    total: int = 0
    own: int = 0
    below: dict[str, _Node] = field(default_factory=dict)

    def add(self, span: Span, covered: Iterable[Span] = ()) -> None:
        """Adds a call (start and end) to the branch. `covered` has the spans of the calls that it made, which are not self time."""
        start, end = span
        inside = [(max(start, other_start), min(end, other_end)) for other_start, other_end in covered]
        self.count += 1
        self.total += end - start
        self.own += end - start - total_ns(at_least(inside, 1))

    def branch(self, name: str) -> _Node:
        return self.below.setdefault(name, _Node())


class CallTree:
    """Builds the call tree of a run from its rollouts. The roots are suites and variants."""

    def __init__(self) -> None:
        self._roots = _Node()

    def add(self, rollout: Rollout) -> None:
        """Adds a rollout with its attempts. Attempts without times are ignored."""
        root = self._roots.branch(rollout.key.group)
        for attempt in rollout.attempts:
            span = attempt.started_ns, attempt.ended_ns
            if not attempt.started_ns:
                continue
            last = attempt.attempt == rollout.attempt
            node = root if last else root.branch(EARLIER)
            node.add(span, _add_calls(node, attempt, rollout if last else None))
            if not last:
                root.total += attempt.ended_ns - attempt.started_ns

    def branches(self) -> tuple[Branch, ...]:
        """Returns all branches of the tree. Siblings are sorted by total time, the longest first."""
        return tuple(chain.from_iterable(_branches((name,), node, node.total) for name, node in _ordered(self._roots)))


def top(tree: Iterable[Branch], most: int = 5) -> list[Branch]:
    """Returns the `most` branches with the longest total times, without roots."""
    return sorted((branch for branch in tree if len(branch.path) > 1), key=lambda branch: -branch.total_s)[:most]


def _add_calls(node: _Node, attempt: Attempt, rollout: Rollout | None) -> list[Span]:
    """Adds the calls of an attempt to its node. Returns their spans. `rollout` is None for earlier attempts, whose tools are unknown."""
    calls = [(f"{call.role or 'LLM'} {call.model or 'unknown'}", call) for call in (*attempt.calls, *attempt.other_calls)]
    tools: dict[Span, tuple[_Node, list[Span]]] = {}
    spans: list[Span] = []
    for tool in rollout.tool_calls if rollout else ():
        branch = node.branch(f"tool {tool.name}")
        if tool.started_ns is None or tool.ended_ns is None:
            branch.count += 1
            continue
        spans.append((tool.started_ns, tool.ended_ns))
        if spans[-1] in tools:  # Of two tools with the same span, the first one gets the calls within.
            branch.add(spans[-1])
        else:
            tools[spans[-1]] = branch, []
    for name, call in calls:
        span = called_ns(call), call.ended_ns
        owner = _owner(span, tools)
        _add_call((tools[owner][0] if owner else node).branch(name), call, span)
        (tools[owner][1] if owner else spans).append(span)
    for span, (branch, covered) in tools.items():
        branch.add(span, covered)
    return spans


def _owner(span: Span, tools: Iterable[Span]) -> Span | None:
    """Returns the span of the tool that was running during an LLM call, or None. If there are several, the last one to start counts."""
    return max((tool for tool in tools if tool[0] <= span[0] and span[1] <= tool[1]), default=None)


def _add_call(node: _Node, call: LLMCall, span: Span) -> None:
    """Adds an LLM call to its node, and its parts to nodes below that."""
    parts = [*_parts(call, span)]
    node.add(span, (part for _, part in parts))
    for name, part in parts:
        node.branch(name).add(part)


def _parts(call: LLMCall, span: Span) -> Iterator[tuple[str, Span]]:
    """Yields name and span of each part of a successful call. A failed call has no parts, so that all its time is self time."""
    if call.error_kind is None and call.sent_ns is not None:
        first = call.output[0].at_ns if call.output else call.ended_ns
        yield "before it was sent", (span[0], call.sent_ns)
        yield "first token", (call.sent_ns, first)
        yield "decoding", (first, call.ended_ns)


def _ordered(node: _Node) -> list[tuple[str, _Node]]:
    return sorted(node.below.items(), key=lambda each: (-each[1].total, each[0]))


def _branches(path: tuple[str, ...], node: _Node, whole: int) -> Iterator[Branch]:
    yield Branch(path, node.count, node.total / 1e9, node.own / 1e9, node.total / whole if whole else None)
    for name, below in _ordered(node):
        yield from _branches((*path, name), below, whole)
