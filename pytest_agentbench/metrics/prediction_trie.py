"""The prediction trie of the NVIDIA NeMo Agent Toolkit: what to expect of a call, by the functions that make it and its number there.

A run has no functions, so the suite stands for the workflow and the role for the function that makes the call. A trace is the last attempt
at a rollout. All numbers are computed as the toolkit does: percentiles are interpolated, and a call follows another if it ends later.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pytest_agentbench.metrics.call_hints import COMPLETE, MS, calls_at_router
from pytest_agentbench.records import LLMCall, Rollout

ROOT = "root"
AGENT = "agent"  # name of the node of the agent itself, whose role is empty
ANY = ""  # in place of the number of a call: all calls of a node

#: The toolkit's weights for the sensitivity of a call, and its greatest value.
CRITICAL, FANOUT, POSITION = 0.5, 0.3, 0.2
SCALE = 5


@dataclass(frozen=True)
class PredictedNumber:
    """The distribution of a number over recorded calls. All are 0 without calls."""

    sample_count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p95: float = 0.0


@dataclass(frozen=True)
class CallPrediction:
    """The expectations of a call."""

    remaining_calls: PredictedNumber  # calls of the trace that end later
    interarrival_ms: PredictedNumber  # milliseconds from the answer to the next call of the trace
    output_tokens: PredictedNumber
    latency_sensitivity: int | None = None  # from 1 to SCALE, how much the trace waits for the call; None in files without it


@dataclass(frozen=True)
class TrieNode:
    """A node of the trie: the calls that one function makes, with those of the functions below it."""

    name: str
    predictions_by_call_index: Mapping[str, CallPrediction]  # number of the call in its function, counted from 1 -> prediction
    predictions_any_index: CallPrediction | None  # for calls with other numbers; None if there are no calls
    children: Mapping[str, TrieNode] = field(default_factory=dict)

    def find(self, path: Sequence[str], index: int) -> CallPrediction | None:
        """Returns the prediction for call number `index` of a function as the toolkit does: that of the deepest node on its path."""
        own = self.predictions_by_call_index.get(str(index), self.predictions_any_index)
        child = self.children.get(path[0]) if path else None
        below = child.find(path[1:], index) if child else None
        return own if below is None else below


class _Seen(NamedTuple):
    """The data of a recorded call that a node collects."""

    number: int  # of the call in its function, counted from 1
    remaining: float
    next_ms: float | None
    tokens: float
    sensitivity: float


class TrieBuilder:
    """Collects the calls of rollouts, and makes a trie from them."""

    def __init__(self, workflow: str = "") -> None:
        """Takes the name of the node below the root. If it is empty, each suite has its own."""
        self._workflow = workflow
        self._nodes: defaultdict[tuple[str, ...], defaultdict[str, list[_Seen]]] = defaultdict(lambda: defaultdict(list))
        self.traces = 0

    def add(self, rollout: Rollout) -> None:
        """Adds the calls of a complete rollout. Others ended early, so the number of their calls says nothing."""
        if rollout.kind != "scenario" or rollout.status not in COMPLETE:
            return
        calls = sorted((call for call in calls_at_router(rollout) if call.error_kind is None), key=lambda call: call.ended_ns)
        self.traces += bool(calls)
        for call, seen in zip(calls, _seen(calls, rollout.ended_ns - rollout.started_ns), strict=True):
            path = (self._workflow or rollout.suite, call.role or AGENT)
            for depth in range(len(path) + 1):
                node = self._nodes[path[:depth]]
                node[str(seen.number)].append(seen)
                node[ANY].append(seen)

    def build(self) -> TrieNode:
        """Returns the root of the trie."""
        return self._node(())

    def _node(self, path: tuple[str, ...]) -> TrieNode:
        seen: Mapping[str, list[_Seen]] = self._nodes.get(path, {})
        indices = sorted((index for index in seen if index != ANY), key=int)
        below = sorted(each for each in self._nodes if len(each) == len(path) + 1 and each[: len(path)] == path)
        return TrieNode(
            path[-1] if path else ROOT,
            {index: _prediction(seen[index]) for index in indices},
            _prediction(seen[ANY]) if seen else None,
            {each[-1]: self._node(each) for each in below},
        )


def _seen(calls: Sequence[LLMCall], lasted_ns: int) -> Iterator[_Seen]:
    """Yields what each call of a trace tells. Calls are in the order of their ends."""
    numbers: Counter[str] = Counter()
    starts = sorted(call.begun_ns for call in calls)
    for place, (call, sensitivity) in enumerate(zip(calls, _sensitivities(calls, lasted_ns), strict=True)):
        numbers[call.role] += 1
        following = next((start for start in starts if start > call.ended_ns), None)
        next_ms = None if following is None else (following - call.ended_ns) / MS
        yield _Seen(numbers[call.role], len(calls) - place - 1, next_ms, call.completion_tokens or 0, sensitivity)


def _sensitivities(calls: Sequence[LLMCall], lasted_ns: int) -> list[float]:
    """Returns how much a trace waits for each of its calls, from 0 to 1.

    It is the weighted sum of the call's share of the trace's time, of the steps that follow, and of its distance from the middle. The
    least and the greatest sum of a trace become 0 and 1.
    """
    steps = _steps(calls)
    last = max(steps, default=0)
    raw = []
    for call, step in zip(calls, steps, strict=True):
        place = step / last if last else 1.0
        critical = min((call.ended_ns - call.begun_ns) / lasted_ns, 1.0) if lasted_ns > 0 else 1.0
        raw.append(CRITICAL * critical + FANOUT * (1 - place) + POSITION * max(1 - place, place))
    least, spread = min(raw, default=0.0), max(raw, default=0.0) - min(raw, default=0.0)
    return [(each - least) / spread if spread > 0 else 0.5 for each in raw]


def _steps(calls: Sequence[LLMCall]) -> list[int]:
    """Returns the number of the step of each call, from 0. Calls that overlap, also through others, are one step."""
    steps, step, until = [0] * len(calls), -1, -math.inf
    for place in sorted(range(len(calls)), key=lambda place: calls[place].begun_ns):
        if calls[place].begun_ns >= until:
            step, until = step + 1, calls[place].ended_ns
        steps[place], until = step, max(until, calls[place].ended_ns)
    return steps


def _prediction(seen: Sequence[_Seen]) -> CallPrediction:
    mean = sum(each.sensitivity for each in seen) / len(seen)
    return CallPrediction(
        _predicted([each.remaining for each in seen]),
        _predicted([each.next_ms for each in seen if each.next_ms is not None]),
        _predicted([each.tokens for each in seen]),
        max(1, min(SCALE, round(mean * (SCALE - 1)) + 1)),
    )


def _predicted(values: Sequence[float]) -> PredictedNumber:
    if not values:
        return PredictedNumber()
    ranked = sorted(values)
    return PredictedNumber(len(ranked), sum(ranked) / len(ranked), *(_percentile(ranked, share) for share in (0.5, 0.9, 0.95)))


def _percentile(ranked: Sequence[float], share: float) -> float:
    """Returns a percentile by linear interpolation between the values next to it."""
    at = (len(ranked) - 1) * share
    low, high = ranked[math.floor(at)], ranked[math.ceil(at)]
    return low + (high - low) * (at - math.floor(at))
