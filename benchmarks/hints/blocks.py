"""Computes the results of an arm at one router: figures of its blocks, and their ratios to the blocks of the base arm."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from statistics import mean, median
from typing import NamedTuple

from benchmarks.measurement import BenchmarkError
from pytest_agentbench.metrics.call_hints import quantile
from pytest_agentbench.stats.means import Interval, mean_interval


class Step(NamedTuple):
    """One LLM call of a session. `sent` and `ended` are seconds, time.time()."""

    session: str
    sent: float
    ended: float
    ttft: float  # milliseconds


@dataclass(frozen=True)
class Block:
    """The figures of one block, in which an arm runs all sessions once."""

    session: float  # median of the seconds from the first call of a session to its last token
    ttft: float  # mean of the milliseconds to the first token
    ttft_p95: float  # its 95th percentile


class Ratio(NamedTuple):
    """The ratio of a figure to that of the base arm: geometric mean over pairs of blocks, and its 95 % interval."""

    mean: float
    low: float
    high: float


FIGURES: Sequence[Callable[[Block], float]] = (attrgetter("session"), attrgetter("ttft"), attrgetter("ttft_p95"))


def block_of(steps: Sequence[Step]) -> Block:
    """Computes the figures of a block from its calls."""
    sessions = [[*each] for _, each in groupby(sorted(steps), key=attrgetter("session"))]
    times = [step.ttft for step in steps]
    lengths = [max(step.ended for step in each) - min(step.sent for step in each) for each in sessions]
    return Block(median(lengths), mean(times), quantile(times, 0.95))


def interval_of(blocks: Sequence[Block], figure: Callable[[Block], float]) -> Interval:
    """Returns the mean of a figure over blocks with its 95 % interval (Student's t)."""
    return mean_interval([figure(block) for block in blocks], limits=None)


def ratio_of(blocks: Sequence[Block], base: Sequence[Block], figure: Callable[[Block], float]) -> Ratio:
    """Returns the ratio of a figure to that of the base arm, whose blocks are in the same order."""
    logs = [math.log(figure(block) / figure(other)) for block, other in zip(blocks, base, strict=True)]
    interval = mean_interval(logs, limits=None)
    if interval.mean is None or interval.low is None or interval.high is None:
        raise BenchmarkError("a ratio to the base arm needs at least two different pairs of blocks")
    return Ratio(math.exp(interval.mean), math.exp(interval.low), math.exp(interval.high))
