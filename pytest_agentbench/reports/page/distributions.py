"""How latencies and rates are spread: counts in bins that grow by a constant factor, so that 0.1 ms and 100 s fit in one picture."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from pytest_agentbench.records import Json

if TYPE_CHECKING:
    from pytest_agentbench.metrics.frame import Frame, Slice
    from pytest_agentbench.stats.arrays import Counts, Floats

BINS = 96  # in each power of ten: 2.4 % wide; the picture joins as many of them as its data want
LEAST = 1e-2  # what is below is counted there


class Distributions:
    """Counts by suite and variant: TTFT and ITL in milliseconds, output tokens per second of a call."""

    def __init__(self) -> None:
        self._counts: defaultdict[str, defaultdict[str, Counter[int]]] = defaultdict(lambda: defaultdict(Counter))

    def add(self, frame: Frame, by: int = 1) -> None:
        """Counts all calls of some rollouts, those of earlier attempts included; `by` -1 takes them back."""
        part = frame.scenarios()
        for group in dict.fromkeys(part.rollouts["group"].tolist()):
            for name, values in _values(part.where(group=group)).items():
                counts = self._counts[group][name]
                for each, count in Counter(bins_of(values).tolist()).items():
                    counts[each] += by * count

    def plain(self) -> Json:
        """Group -> metric -> [[bin, count], ...], the lowest bin first."""
        return {group: {name: _counted(bins) for name, bins in metrics.items()} for group, metrics in self._counts.items()}


def bins_of(values: Floats) -> Counts:
    """Returns the bin of each value: bin 0 begins at 1."""
    import numpy as np

    bins: Counts = np.floor(np.log10(np.maximum(values, LEAST)) * BINS + 1e-9).astype(np.int64)
    return bins


def _counted(bins: Counter[int]) -> list[tuple[int, int]]:
    return [(each, bins[each]) for each in sorted(bins) if bins[each]]


def _values(part: Slice) -> dict[str, Floats]:
    gaps = part.frame.events("itl").of(part.successful_calls.mask) / 1e6
    return {"ttft": part.known("ttft_ms"), "itl": gaps, "rate": part.known("call_output_tokens_per_s")}
