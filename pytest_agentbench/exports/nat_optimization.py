"""inference_optimization.json of the NeMo Agent Toolkit, by its definitions: intervals, common prefixes, new words, runtimes.

It reads prompts where transcripts tell them, and of common prefixes it has those of half of a model's calls or more, its default.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain

from pytest_agentbench.exports.nat_profile import ProfilerEvent, seconds
from pytest_agentbench.metrics.other_tools.common import deviation, mean
from pytest_agentbench.profile.prefixes import PromptTree, PromptTrees
from pytest_agentbench.records import Json, Rollout
from pytest_agentbench.stats.percentiles import percentile
from pytest_agentbench.tables.prompts import prompts

FREQUENT = 0.5  # of a model's calls
INTERVALS = {"ninetieth_interval": 1.645, "ninety_fifth_interval": 1.96, "ninety_ninth_interval": 2.576}
TAILS = (90, 95, 99)


class Optimization:
    """What is kept of a job's examples."""

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []  # of each example, seconds
        self._latencies: list[float] = []
        self._prompts = PromptTrees()
        self._new_words: defaultdict[str, list[int]] = defaultdict(list)  # model -> of each call but the first of an example
        self._requests = 0

    def add_prompts(self, rollout: Rollout) -> None:
        self._prompts.add(rollout)
        for model, count in _new_words(rollout):
            self._new_words[model].append(count)

    def add_events(self, events: Sequence[ProfilerEvent]) -> None:
        """The events of an example, in the order of time."""
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

    def data(self) -> Json:
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
            "dynamo_metrics": None,
        }

    def _throughput(self) -> Json:
        """Requests per second of the time from the first event to the last; its error is that of a count."""
        window = max(end for _, end in self._spans) - min(start for start, _ in self._spans) if self._spans else 0.0
        if window <= 0 or self._requests < 2:
            return _figures()
        rate = self._requests / window
        error = rate / math.sqrt(self._requests)
        return _figures(self._requests, rate, {name: (max(rate - z * error, 0.0), rate + z * error) for name, z in INTERVALS.items()})


def _interval(values: Sequence[float]) -> Json:
    """Of a mean: z times the standard error. Of one value all is that value."""
    center = mean(values)
    if center is None:
        return _figures()
    error = (deviation(values) or 0.0) / math.sqrt(len(values))
    return _figures(len(values), center, {name: (center - z * error, center + z * error) for name, z in INTERVALS.items()}, _tails(values))


def _figures(n: int = 0, center: float = 0, intervals: Json | None = None, tails: Json | None = None) -> Json:
    """What nobody knows is 0, as the toolkit has it."""
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
    """(beginning, calls) of the longest ones that so many calls have, to the letter."""
    calls, children = tree.counts()[0], tree.children()
    places = [("", [(0, 0)])]  # a beginning, and where in which nodes it goes on
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
    """Where the next letters after a part are."""
    node, used = part
    if used < len(tree.texts[node]):
        yield part
    else:
        yield from ((child, 0) for child in children[node])


def _new_words(rollout: Rollout) -> Iterator[tuple[str, int]]:
    """(model, words of a prompt that the one before it of that model in its example has not)."""
    words: dict[str, set[str]] = {}  # model -> of its last prompt
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
