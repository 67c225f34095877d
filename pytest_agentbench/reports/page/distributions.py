"""How latencies and rates are spread: counts in bins that grow by a constant factor, so that 0.1 ms and 100 s fit in one picture."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from pytest_agentbench.metrics import timings
from pytest_agentbench.records import Json, LLMCall, Rollout

BINS = 96  # in each power of ten: 2.4 % wide; the picture joins as many of them as its data want
LEAST = 1e-2  # what is below is counted there


class Distributions:
    """Of each suite and variant: TTFT and ITL in milliseconds, output tokens per second of a call."""

    def __init__(self) -> None:
        self._counts: defaultdict[str, defaultdict[str, Counter[int]]] = defaultdict(lambda: defaultdict(Counter))

    def add(self, rollout: Rollout) -> None:
        """Counts all of a rollout's calls, those of earlier attempts included, as the run's percentiles do."""
        for name, bins in _bins(rollout):
            self._counts[rollout.key.group][name].update(bins)

    def remove(self, rollout: Rollout) -> None:
        """Takes back what was counted of a rollout that ran again."""
        for name, bins in _bins(rollout):
            self._counts[rollout.key.group][name].subtract(bins)

    def plain(self) -> Json:
        """Group -> metric -> [[bin, count], ...], the lowest bin first."""
        return {group: {name: _counted(bins) for name, bins in metrics.items()} for group, metrics in self._counts.items()}


def _bins(rollout: Rollout) -> Iterator[tuple[str, Iterable[int]]]:
    for call in rollout.all_calls:
        for name, values in _values(call).items():
            yield name, map(bin_of, values)


def bin_of(value: float) -> int:
    """The bin of a value: bin 0 begins at 1."""
    return math.floor(math.log10(max(value, LEAST)) * BINS + 1e-9)


def _counted(bins: Counter[int]) -> list[tuple[int, int]]:
    return [(each, bins[each]) for each in sorted(bins) if bins[each]]


def _values(call: LLMCall) -> dict[str, list[float]]:
    ttft, rate = timings.ttft_ns(call), timings.tokens_per_s(call)
    return {
        "ttft": [] if ttft is None else [ttft / 1e6],
        "itl": [gap / 1e6 for gap in timings.itl_ns(call)],
        "rate": [] if rate is None else [rate],
    }
