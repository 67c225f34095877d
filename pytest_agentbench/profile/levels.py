"""How many spans are under way at a time, as a staircase of numpy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

if TYPE_CHECKING:
    from pytest_agentbench.stats.arrays import Counts, Floats


class Levels(NamedTuple):
    """`counts[i]` spans are under way from `times[i]` to `times[i + 1]`; a span that ends when another one starts does not overlap it."""

    times: Floats  # in order, each once
    counts: Counts  # the last is 0

    @classmethod
    def of(cls, starts: Floats, ends: Floats) -> Self:
        """Of spans, none of which ends before it starts."""
        times, places = np.unique(np.concatenate([starts, ends]), return_inverse=True)
        steps = np.repeat([1.0, -1.0], [len(starts), len(ends)])
        return cls(times, np.cumsum(np.bincount(places, steps, len(times))).round().astype(np.int64))

    @property
    def lengths(self) -> Floats:
        """How long each level but the last lasts."""
        return np.diff(self.times)

    def at(self, times: Floats) -> Counts:
        """How many are under way at some times; one that starts then counts."""
        places = np.searchsorted(self.times, times, "right") - 1
        return np.where(places < 0, 0, self.counts[places])

    def duration(self) -> dict[int, float]:
        """How long each number of spans was under way, in the order of numbers."""
        if len(self.times) < 2:
            return {}
        levels, places = np.unique(self.counts[:-1], return_inverse=True)
        return dict(zip(levels.tolist(), np.bincount(places, self.lengths).tolist(), strict=True))


def level_at(durations: dict[int, float], q: float) -> int:
    """The number that was under way, or fewer, for q % of the time; 0 of no time."""
    total, so_far, last = sum(durations.values()), 0.0, 0
    for level, duration in durations.items():
        so_far, last = so_far + duration, level
        if total > 0 and so_far >= q / 100 * total:
            break
    return last if total > 0 else 0
