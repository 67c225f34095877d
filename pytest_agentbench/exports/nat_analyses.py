"""Computes two analyses by the NeMo Agent Toolkit's definitions: workflow_profiling_report.txt and inference_optimization.json."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from pytest_agentbench.exports.nat_events import ProfilerEvent, seconds
from pytest_agentbench.metrics.other_tools.measures import deviation, mean
from pytest_agentbench.metrics.timeline import at_least, total_ns
from pytest_agentbench.profile.prefixes import PromptTree, PromptTrees
from pytest_agentbench.profile.slow_phases import Levels, level_at
from pytest_agentbench.records import Json, Rollout
from pytest_agentbench.stats.quantiles import percentile
from pytest_agentbench.tables.prompts import prompts

KINDS = {"LLM": "unknown_llm", "TOOL": "unknown_tool"}  # kind of call -> name of a call without a name
QUANTILES = (50, 90, 95, 99)
TOP = 5
GAP = "\n\n\n"  # before each analysis


@dataclass
class Node:
    """An LLM or tool call in the tree of the calls of an example (an entry of the data set). Times are nanoseconds since 1970."""

    id: str
    kind: str
    name: str
    start: int
    end: int  # equal to `start` until the end is known
    depth: int
    parent: int | None  # index in the nodes of the example
    prompt_tokens: int = 0
    total_tokens: int = 0
    below: list[tuple[int, int]] = field(default_factory=list)  # spans of its children

    @property
    def duration(self) -> int:
        return max(0, self.end - self.start)

    @property
    def own(self) -> int:
        """Nanoseconds of the call in which no call below it was running."""
        clamped = ((max(self.start, start), min(self.end, end)) for start, end in self.below)
        return max(0, self.duration - total_ns(at_least(clamped, 1)))


class NatReport:
    """Collects the calls of a job, and makes the text of workflow_profiling_report.txt from them."""

    def __init__(self) -> None:
        self._examples: dict[int, list[Node]] = {}

    def add(self, example: int, events: Sequence[ProfilerEvent]) -> None:
        """Adds the profiler events of one rollout, which must be in order of time."""
        self._examples[example] = _nodes(events)

    def text(self) -> str:
        examples = [nodes for _, nodes in sorted(self._examples.items())]
        return GAP + GAP.join("\n".join(lines) for lines in (_nested(examples), _spikes([*_all(examples)])))


def _nodes(events: Sequence[ProfilerEvent]) -> list[Node]:
    """Returns the LLM and tool calls of one rollout in order of their starts. A printed call tree shows them in the same order."""
    nodes: list[Node] = []
    stack: list[int] = []
    started: dict[str, int] = {}
    for event in events:
        kind, _, step = event.kind.partition("_")
        if kind in KINDS and step == "START":
            started[event.id] = len(nodes)
            parent = stack[-1] if stack else None
            nodes.append(Node(event.id, kind, event.name or KINDS[kind], event.at, event.at, len(stack), parent))
            stack.append(started[event.id])
        elif kind in KINDS and step == "END" and event.id in started:
            place = started.pop(event.id)
            if stack and stack[-1] == place:
                stack.pop()
            node = nodes[place]
            node.end = event.at
            node.prompt_tokens, node.total_tokens = (event.tokens.get(name, 0) for name in ("prompt_tokens", "total_tokens"))
    for node in nodes:
        if node.parent is not None:
            nodes[node.parent].below.append((node.start, node.end))
    return nodes


def _all(examples: Sequence[Sequence[Node]]) -> Iterator[Node]:
    for nodes in examples:
        yield from nodes


def _levels(nodes: Sequence[Node]) -> tuple[Levels, NDArray[np.float64], NDArray[np.float64]]:
    """Returns the number of running calls over time, and the starts and ends of calls in nanoseconds after the first start."""
    began = min((node.start for node in nodes), default=0)
    starts = np.array([node.start - began for node in nodes], np.float64)
    ends = starts + np.array([node.duration for node in nodes], np.float64)
    return Levels.of(starts, ends), starts, ends


def _nested(examples: Sequence[Sequence[Node]]) -> Iterator[str]:
    nodes = [*_all(examples)]
    if not nodes:
        yield "No calls found."
        return
    levels, starts, ends = _levels(nodes)
    middle = levels.at((starts + ends) / 2)
    subtrees = [total for of_example in examples for total in _subtrees(of_example)]
    yield "=== Multi-Example Nested Call Profiling Report ==="
    yield f"Total calls (across all examples): {len(nodes)}"
    yield "\n-- Concurrency Distribution (all examples) --"
    yield _quantiles(levels)
    yield f"\n-- Top {TOP} Calls by Bottleneck Score (subtree_time) --"
    for rank, place in enumerate(sorted(range(len(nodes)), key=lambda place: -subtrees[place])[:TOP], 1):
        node = nodes[place]
        yield (
            f"{rank}) UUID={node.id}, {node.kind} '{node.name}', dur={_s(node.duration)}, self_time={_s(node.own)}, "
            f"subtree_time={_s(subtrees[place])}, concurrency={middle[place]:.1f}, score={_s(subtrees[place])}"
        )
    yield "\n-- Full Tree(s) (All Examples) --"
    for node in nodes:
        span = f"start={_s(node.start)}, end={_s(node.end)}, dur={_s(node.duration)}"
        yield f"{'  ' * node.depth}- {node.kind} '{node.name}' (uuid={node.id}, {span})"


def _subtrees(nodes: Sequence[Node]) -> list[int]:
    """Returns for each call its own time plus that of all calls below it, in nanoseconds. Parents must precede their children."""
    totals = [node.own for node in nodes]
    for place in range(len(nodes) - 1, -1, -1):
        if (parent := nodes[place].parent) is not None:
            totals[parent] += totals[place]
    return totals


def _quantiles(levels: Levels) -> str:
    durations = levels.duration()
    return ", ".join(f"p{q}={level_at(durations, q):.1f}" for q in QUANTILES)


def _spikes(nodes: Sequence[Node]) -> Iterator[str]:
    levels, starts, ends = _levels(nodes)
    durations = levels.duration()
    threshold = max(1, math.ceil(level_at(durations, 90)))
    spiked = levels.counts >= threshold
    yield "=== Concurrency Spike Analysis ==="
    yield f"Total calls in dataset: {len(nodes)}"
    yield f"Total time observed: {_s(sum(durations.values()))} units (sum of concurrency timeline)"
    yield "\n-- Concurrency Distribution --"
    yield from (f"  concurrency={level}: {_s(duration)} time" for level, duration in durations.items())
    yield f"\nPercentiles => {_quantiles(levels)}"
    yield f"Spike threshold chosen: {threshold}"
    yield "\n-- Detected Spike Intervals --"
    if not spiked.any():
        yield "No intervals exceed concurrency spike threshold."
    began = min((node.start for node in nodes), default=0)
    for rank, place in enumerate(np.flatnonzero(spiked), 1):
        (start, end), count = levels.times[place : place + 2], levels.counts[place]
        span = f"{_s(began + start)}-{_s(began + end)}"
        yield f"{rank}) {span}, concurrency={count}, length={_s(end - start)}, #active_calls={count}"
    spikes = _spikes_of(levels, spiked, starts, ends)
    yield "\n-- Correlation Stats for Spiked Calls --"
    yield f"Avg prompt_tokens in spike calls: {_average([node.prompt_tokens for node in nodes], spikes):.1f}"
    yield f"Avg total_tokens in spike calls : {_average([node.total_tokens for node in nodes], spikes):.1f}"
    yield "\n-- Average Latency by Midpoint Concurrency --"
    if not nodes:
        yield "No calls or no concurrency data."
        return
    middle = np.where(ends > starts, levels.at((starts + ends) / 2), 0)
    for level in np.unique(middle):
        yield f"  concurrency={level} => avg_latency={_s(float((ends - starts)[middle == level].mean()))}"


def _spikes_of(levels: Levels, spiked: NDArray[np.bool_], starts: NDArray[np.float64], ends: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns for each call the number of spikes (periods of high concurrency) during which it ran.

    Spikes begin and end when calls do. `spiked` says which periods in `levels` are spikes.
    """
    before = np.concatenate([np.zeros(1), np.cumsum(spiked, dtype=np.float64)])
    first, last = (before[np.searchsorted(levels.times, times)] for times in (starts, ends))
    inside: NDArray[np.float64] = last - first
    return inside


def _average(tokens: Sequence[int], spikes: NDArray[np.float64]) -> float:
    """Returns the mean number of tokens of calls in spikes, or 0. A call with tokens counts once for each spike during which it ran."""
    counts = np.array(tokens, np.float64)
    weights = np.where(counts > 0, spikes, 0)
    return float((counts * weights).sum() / weights.sum()) if weights.sum() else 0.0


def _s(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e9:.2f}"


FREQUENT = 0.5  # share of a model's calls that must have a prefix
INTERVALS = {"ninetieth_interval": 1.645, "ninety_fifth_interval": 1.96, "ninety_ninth_interval": 2.576}
TAILS = (90, 95, 99)


class Optimization:
    """Collects the data of a job's rollouts, and makes the content of inference_optimization.json from them."""

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []  # start and end of each example, seconds
        self._latencies: list[float] = []
        self._prompts = PromptTrees()
        self._new_words: defaultdict[str, list[int]] = defaultdict(list)  # model -> new words of each call but an example's first
        self._requests = 0

    def add_prompts(self, rollout: Rollout) -> None:
        self._prompts.add(rollout)
        for model, count in _new_words(rollout):
            self._new_words[model].append(count)

    def add_events(self, events: Sequence[ProfilerEvent]) -> None:
        """Adds the profiler events of one rollout, which must be in order of time."""
        self._requests += 1
        times = [float(seconds(event.at)) for event in events]
        if times:
            self._spans.append((times[0], times[-1]))
        start = None
        for at, event in zip(times, events, strict=True):
            if event.kind == "LLM_START":
                start = at
            elif event.kind == "LLM_END" and start is not None:
                self._latencies.append(at - start)
                start = None

    def data(self, dynamo_metrics: Json | None = None) -> Json:
        """Returns the content of the file. `dynamo_metrics` are what Dynamo's own metrics say, which do not come from rollouts."""
        runtimes = [end - start for start, end in self._spans]
        return {
            "confidence_intervals": {
                "workflow_run_time_confidence_intervals": _interval(runtimes),
                "llm_latency_confidence_intervals": _interval(self._latencies),
                "throughput_estimate_confidence_interval": self._throughput(),
            },
            "common_prefixes": {model: _prefixes(group.tree) for (_, model), group in self._prompts.groups.items()},
            "token_uniqueness": {model: _tails(counts) for model, counts in self._new_words.items()},
            "workflow_runtimes": _tails(runtimes),
            "dynamo_metrics": dynamo_metrics,
        }

    def _throughput(self) -> Json:
        """Returns the rollouts per second between the first and the last profiler event, with intervals.

        The standard error is that of a count.
        """
        window = max(end for _, end in self._spans) - min(start for start, _ in self._spans) if self._spans else 0.0
        if window <= 0 or self._requests < 2:
            return _figures()
        rate = self._requests / window
        error = rate / math.sqrt(self._requests)
        return _figures(self._requests, rate, {name: (max(rate - z * error, 0.0), rate + z * error) for name, z in INTERVALS.items()})


def _interval(values: Sequence[float]) -> Json:
    """Returns the mean of values with its confidence intervals (z times the standard error) and high percentiles.

    With a single value, all figures are that value.
    """
    center = mean(values)
    if center is None:
        return _figures()
    error = (deviation(values) or 0.0) / math.sqrt(len(values))
    return _figures(len(values), center, {name: (center - z * error, center + z * error) for name, z in INTERVALS.items()}, _tails(values))


def _figures(n: int = 0, center: float = 0, intervals: Json | None = None, tails: Json | None = None) -> Json:
    """Returns a mean with its intervals and percentiles as the NeMo Agent Toolkit writes them, with 0 for unknown values."""
    return {"n": n, "mean": center, **dict.fromkeys(INTERVALS, (0, 0)), **(intervals or {}), **(tails or _tails(()))}


def _tails(values: Sequence[float]) -> Json:
    return {f"p{q}": percentile(values, q) or 0 for q in TAILS}


def _prefixes(tree: PromptTree) -> Json:
    calls, _ = tree.counts()
    kept: list[tuple[str, int]] = []
    for prefix, count in sorted(_common(tree, FREQUENT * calls[0]), key=lambda each: (-len(each[0]), -each[1])):
        if not any(prefix in longer for longer, _ in kept):
            kept.append((prefix, count))
    return {"total_calls": calls[0], "prefix_info": [_prefix(prefix, count, calls[0]) for prefix, count in kept]}


def _prefix(prefix: str, count: int, total: int) -> Json:
    return {"prefix": prefix, "prefix_length": len(prefix), "calls_count": count, "calls_percentage": count / total}


def _common(tree: PromptTree, least: float) -> Iterator[tuple[str, int]]:
    """Yields (prefix, number of calls) for the longest prefixes that at least `least` prompts share. Compares them letter by letter."""
    calls, children = tree.counts()[0], tree.children()
    places = [("", [(0, 0)])]  # prefix, and the (node, letters used) at which it continues
    while places:
        begun, parts = places.pop()
        onward: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for node, used in chain.from_iterable(_onward(tree, children, part) for part in parts):
            onward[tree.texts[node][used]].append((node, used + 1))
        common = {letter: nodes for letter, nodes in onward.items() if sum(calls[node] for node, _ in nodes) >= least}
        places += [(begun + letter, nodes) for letter, nodes in common.items()]
        if begun and not common:
            yield begun, sum(calls[node] for node, _ in parts)


def _onward(tree: PromptTree, children: Sequence[Sequence[int]], part: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yields the positions from which the next letter of a prompt can be read, if `part` is the current one.

    A position is (node in the tree of prompts, number of letters of its text already read). At the end of a node's text, the next
    letters are the first ones of its children.
    """
    node, used = part
    if used < len(tree.texts[node]):
        yield part
    else:
        yield from ((child, 0) for child in children[node])


def _new_words(rollout: Rollout) -> Iterator[tuple[str, int]]:
    """Yields (model, number of new words) for each call of a rollout: words that the model's previous prompt does not contain."""
    words: dict[str, set[str]] = {}  # model -> words of its last prompt
    ends: dict[str, int] = {}
    for attempt in rollout.attempts:
        text, calls, known = prompts(rollout, attempt)
        for call, end in zip(calls, known, strict=False):
            before = ends.get(call.model, end + 1)
            new = _words(text[before if before <= end else 0 : end])
            if call.model in words:
                yield call.model, len(new - words[call.model])
            words[call.model] = words[call.model] | new if before <= end else new
            ends[call.model] = end


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))
