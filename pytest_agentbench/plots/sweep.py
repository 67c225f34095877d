"""The picture of a sweep: throughput against latency, and the share of good calls, at each concurrency."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes

from pytest_agentbench.plots.canvas import COLOURS, axes, save, style, whole
from pytest_agentbench.plots.runs import RunLoad, front
from pytest_agentbench.sweep.levels import Criteria, LevelVerdict, Operation, knee


def draw(operations: Sequence[Operation], judged: Sequence[LevelVerdict], terms: Criteria, file: Path) -> None:
    """Writes the picture of a sweep. The file's suffix is its format, for example `.svg`."""
    shares = [each for each in judged if each.share and each.share.mean is not None]
    with style():
        figure, [trade, *others] = axes(columns=2 if shares else 1)
        _trade(trade, operations)
        for axis in others:
            _shares(axis, shares, terms)
        save(figure, file)


def _trade(axis: Axes, operations: Sequence[Operation]) -> None:
    axis.plot([each.latency_ms for each in operations], [each.throughput for each in operations], color="#999999", zorder=1)
    best = front([RunLoad(str(each.concurrency), each.latency_ms, each.throughput) for each in operations])
    on_front, bend = {each.name for each in best}, knee(operations)
    for each in operations:
        colour = COLOURS[0] if str(each.concurrency) in on_front else "#999999"
        axis.plot(each.latency_ms, each.throughput, "o", color=colour, markersize=9, zorder=2)
        axis.annotate(str(each.concurrency), (each.latency_ms, each.throughput), (8, -16), textcoords="offset points")
    if bend:
        axis.plot(bend.latency_ms, bend.throughput, "o", markersize=18, fillstyle="none", color=COLOURS[1])
    axis.set_xlabel("duration of an LLM call, median (ms)")
    axis.set_ylabel("output tokens per second")
    axis.set_xlim(
        0, max((each.latency_ms for each in operations), default=1.0) * 1.15
    )  # from 0, so that differences of a millisecond do not look large
    axis.set_ylim(bottom=0)
    axis.set_title(f"rollouts in flight; {'ring: the knee; ' if bend else ''}grey: another level is better in both", fontsize=12)


def _shares(axis: Axes, shares: Sequence[LevelVerdict], terms: Criteria) -> None:
    for each in shares:
        if each.share is None or each.share.mean is None:
            continue
        mean, low, high = each.share.mean, each.share.low, each.share.high
        spread = None if low is None or high is None else [[max(0.0, mean - low)], [max(0.0, high - mean)]]
        axis.errorbar(each.concurrency, mean, spread, fmt="o", color=COLOURS[0], markersize=9, capsize=4)
    axis.axhline(terms.target, color=COLOURS[1], linestyle="--")
    axis.set_title(f"dashed: target share, {terms.target:g}", fontsize=12)
    whole(axis.xaxis)
    axis.set_xlabel("rollouts in flight")
    axis.set_ylabel("share of good calls, 95 % interval")
    axis.set_ylim(-0.05, 1.1)
