"""What a way of routing comes to at a concurrency: its blocks, and their means with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import NamedTuple

from benchmarks.measurement import BenchmarkError
from benchmarks.pressure.passes import Pass
from pytest_agentbench.stats.means import Interval, mean_interval


class Step(NamedTuple):
    """One LLM call of a task; times are seconds, those of the clock as time.time() has them."""

    sent: float
    ended: float
    ttft: float
    prompt: int  # tokens


@dataclass(frozen=True)
class Block:
    """All tasks once, so many at a time, in one arm."""

    calls_per_minute: float
    hit_ratio: float  # of the tokens of all prompts, those that no worker computed
    ttft_p95: float  # seconds


@dataclass(frozen=True)
class Cell:
    """An arm at a concurrency: means over its blocks, with 95 % intervals; Student's t."""

    calls_per_minute: Interval
    hit_ratio: Interval
    ttft_p95: Interval
    ratio: tuple[float, float, float] | None  # of its LLM calls per minute to the base arm's, low and high; None: it is the base


def block_of(steps: Sequence[Step], passes: Sequence[Pass]) -> Block:
    """Of the steps of a block and the passes of all workers; those of another time are left out.

    Prompts that were preempted are computed once more, so a hit ratio may be below 0. Raises BenchmarkError where too little was measured.
    """
    if len(steps) < 2:
        raise BenchmarkError(f"a block has {len(steps)} steps")
    began, ended = min(step.sent for step in steps), max(step.ended for step in steps)
    computed = sum(each.computed for each in passes if began <= each.at <= ended)
    if not computed:
        raise BenchmarkError("the workers computed no prompt in a block, so their passes are not those of its time")
    return Block(
        calls_per_minute=60 * len(steps) / (ended - began),
        hit_ratio=1 - computed / sum(step.prompt for step in steps),
        ttft_p95=quantiles([step.ttft for step in steps], n=20, method="inclusive")[-1],
    )


def cell_of(blocks: Sequence[Block], base: Sequence[Block] | None) -> Cell:
    """`base` has the blocks of the same tasks in the base arm, in the same order."""
    return Cell(
        calls_per_minute=_mean([block.calls_per_minute for block in blocks]),
        hit_ratio=_mean([block.hit_ratio for block in blocks]),
        ttft_p95=_mean([block.ttft_p95 for block in blocks]),
        ratio=_ratio(blocks, base) if base else None,
    )


def _mean(values: Sequence[float]) -> Interval:
    return mean_interval(values, limits=None)


def _ratio(blocks: Sequence[Block], base: Sequence[Block]) -> tuple[float, float, float]:
    """The geometric mean of the ratios of block to block, and its interval."""
    logs = [math.log(block.calls_per_minute / other.calls_per_minute) for block, other in zip(blocks, base, strict=True)]
    interval = _mean(logs)
    if interval.mean is None or interval.low is None or interval.high is None:
        raise BenchmarkError("a ratio needs two blocks that differ")
    return math.exp(interval.mean), math.exp(interval.low), math.exp(interval.high)
