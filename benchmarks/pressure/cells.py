"""Computes the results of one way of routing at one concurrency: figures of its blocks, and their means with intervals."""

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
    """One LLM call of a task. Times are in seconds; `sent` and `ended` are those of time.time()."""

    sent: float
    ended: float
    ttft: float
    prompt: int  # tokens


@dataclass(frozen=True)
class Block:
    """The figures of one block, in which an arm runs all tasks once."""

    calls_per_minute: float
    hit_ratio: float  # of the tokens of all prompts, those that no worker computed
    ttft_p95: float  # seconds


@dataclass(frozen=True)
class Cell:
    """The results of one arm at one concurrency: means over its blocks, with 95 % intervals (Student's t)."""

    calls_per_minute: Interval
    hit_ratio: Interval
    ttft_p95: Interval
    ratio: tuple[float, float, float] | None  # of its LLM calls per minute to the base arm's, low and high; None: it is the base


def block_of(steps: Sequence[Step], passes: Sequence[Pass]) -> Block:
    """Computes the figures of a block from its steps and from the forward passes of all workers during the block.

    Preempted prompts are computed twice, so a hit ratio may be below 0. Raises BenchmarkError if too little was measured.
    """
    if len(steps) < 2:
        raise BenchmarkError(f"a block has {len(steps)} steps, but needs at least 2")
    began, ended = min(step.sent for step in steps), max(step.ended for step in steps)
    computed = sum(each.computed for each in passes if began <= each.at <= ended)
    if not computed:
        raise BenchmarkError("the workers computed no prompt during a block; probably their traces are of another time")
    return Block(
        calls_per_minute=60 * len(steps) / (ended - began),
        hit_ratio=1 - computed / sum(step.prompt for step in steps),
        ttft_p95=quantiles([step.ttft for step in steps], n=20, method="inclusive")[-1],
    )


def cell_of(blocks: Sequence[Block], base: Sequence[Block] | None) -> Cell:
    """Computes the results of an arm. `base` has the blocks of the base arm in the same order; None if this is the base arm."""
    return Cell(
        calls_per_minute=_mean([block.calls_per_minute for block in blocks]),
        hit_ratio=_mean([block.hit_ratio for block in blocks]),
        ttft_p95=_mean([block.ttft_p95 for block in blocks]),
        ratio=_ratio(blocks, base) if base else None,
    )


def _mean(values: Sequence[float]) -> Interval:
    return mean_interval(values, limits=None)


def _ratio(blocks: Sequence[Block], base: Sequence[Block]) -> tuple[float, float, float]:
    """Returns the geometric mean of the ratios of calls per minute, block by block, and the bounds of its interval."""
    logs = [math.log(block.calls_per_minute / other.calls_per_minute) for block, other in zip(blocks, base, strict=True)]
    interval = _mean(logs)
    if interval.mean is None or interval.low is None or interval.high is None:
        raise BenchmarkError("the ratio to the base arm needs at least two different blocks")
    return math.exp(interval.mean), math.exp(interval.low), math.exp(interval.high)
