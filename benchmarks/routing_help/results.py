"""Calculates the results of the comparison from its blocks: medians with intervals, and each arm's ratio to the first one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from benchmarks.routing_help.load import Block
from pytest_agentbench.stats.decisions import Decision, step_down
from pytest_agentbench.stats.latency import RolloutLatencies, compare_interleaved
from pytest_agentbench.stats.mean_intervals import BootstrapMean, Clusters, percentile_t
from pytest_agentbench.stats.quantiles import percentile

Blocks = Mapping[str, Sequence[Block]]  # arm -> its blocks, in the order of the rounds


@dataclass(frozen=True)
class ArmResult:
    """The results of an arm in one condition. Times are of sessions in which no call failed."""

    p50: float  # mean of the medians of the blocks, seconds
    interval: BootstrapMean | None  # of `p50`; None if it has none
    p90: float  # of all sessions, seconds
    hit_ratio: float  # mean share of the prompt tokens that were cached, 0 to 1
    at_fourth: float  # mean share of the prompt tokens that the fourth engine got, 0 to 1
    calls: int
    failed: int  # calls without an answer
    failed_sessions: float  # share of the sessions in which a call failed, 0 to 1
    ratio: Decision | None  # p50 of the first arm divided by that of this arm; None for the first arm
    ratio_p90: Decision | None


def results(blocks: Blocks) -> dict[str, ArmResult]:
    """Returns arm -> its results. The intervals of the ratios to the other arms are adjusted for their number (Holm)."""
    first, *others = blocks
    latencies = {arm: _latencies(each) for arm, each in blocks.items()}

    def ratios(q: int) -> dict[str, Decision]:
        family = [
            lambda confidence, arm=arm: compare_interleaved(latencies[first], latencies[arm], q, confidence=confidence) for arm in others
        ]
        return dict(zip(others, step_down(family), strict=True))

    p50, p90 = ratios(50), ratios(90)
    return {arm: _result(each, p50.get(arm), p90.get(arm)) for arm, each in blocks.items()}


def _latencies(blocks: Sequence[Block]) -> list[RolloutLatencies]:
    return [
        RolloutLatencies(session.name, number, session.began, () if session.failed else (session.seconds,))
        for number, block in enumerate(blocks)
        for session in block.sessions
    ]


def _result(blocks: Sequence[Block], ratio: Decision | None, ratio_p90: Decision | None) -> ArmResult:
    times = [[session.seconds for session in block.sessions if not session.failed] for block in blocks]
    medians = np.array([median(each) for each in times])
    sessions = [session for block in blocks for session in block.sessions]
    return ArmResult(
        p50=float(medians.mean()),
        interval=percentile_t(medians, Clusters.of(range(len(medians)))) if len(medians) > 1 else None,
        p90=percentile([value for each in times for value in each], 90) or 0.0,
        hit_ratio=fmean(block.hit_ratio for block in blocks),
        at_fourth=fmean(block.at_fourth for block in blocks),
        calls=sum(session.calls for session in sessions),
        failed=sum(session.failed for session in sessions),
        failed_sessions=fmean(session.failed > 0 for session in sessions),
        ratio=ratio,
        ratio_p90=ratio_p90,
    )
