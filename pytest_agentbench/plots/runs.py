"""Runs side by side: a point for each suite of each run, with the 95 % interval of its score; and what a backend trades for latency."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import cycle
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pytest_agentbench.plots.canvas import COLOURS, SHAPES, axes, label
from pytest_agentbench.runs.contents import Run
from pytest_agentbench.runs.results import Mean


class Quality(NamedTuple):
    """The main score of a suite of a run."""

    name: str
    mean: Mean
    rollouts_per_hour: float


class Load(NamedTuple):
    """What a run's backend gave."""

    name: str
    ttft_ms: float  # median
    output_tokens_per_s: float


def pictures(runs: Sequence[Run]) -> dict[str, Figure]:
    """File name without its end -> figure; none of runs that were not measured."""
    named = titles(runs)
    qualities = [each for run, title in zip(runs, named, strict=True) for each in qualities_of(run, title)]
    loads = [load for run, title in zip(runs, named, strict=True) if (load := load_of(run, title))]
    drawn = {"quality_vs_speed": _quality(qualities)} if qualities else {}
    return {**drawn, "throughput_vs_latency": _throughput(loads)} if loads else drawn


def titles(runs: Sequence[Run]) -> list[str]:
    """What legends call runs: the names that users gave them, as long as they tell them apart."""
    counts = Counter(run.name for run in runs)
    return [run.name if run.name and counts[run.name] == 1 else run.id for run in runs]


def qualities_of(run: Run, title: str) -> list[Quality]:
    speed = run.performance.rollouts_per_hour
    means = {name: suite.main_mean for name, suite in run.suites.items()}
    return [Quality(f"{title} {name}", mean, speed) for name, mean in means.items() if mean and mean.value is not None and speed]


def load_of(run: Run, title: str) -> Load | None:
    ttft, rate = run.performance.latency("ttft"), run.performance.output_tokens_per_s
    return Load(title, ttft.p50, rate) if ttft and ttft.p50 is not None and rate else None


def _quality(qualities: Sequence[Quality]) -> Figure:
    figure, [axis] = axes()
    for each, colour, shape in zip(qualities, cycle(COLOURS), cycle(SHAPES), strict=False):
        value, low, high = each.mean.value or 0.0, each.mean.low, each.mean.high
        spread = None if low is None or high is None else [[value - low], [high - value]]
        axis.errorbar(each.rollouts_per_hour, value, spread, fmt=shape, color=colour, markersize=9, capsize=4, label=label(each.name))
    axis.set_xlabel("rollouts per hour")
    axis.set_ylabel("mean of the main score, 95 % interval")
    _legend(figure, axis)
    return figure


def _throughput(loads: Sequence[Load]) -> Figure:
    figure, [axis] = axes()
    for each, colour, shape in zip(loads, cycle(COLOURS), cycle(SHAPES), strict=False):
        axis.plot(each.ttft_ms, each.output_tokens_per_s, shape, color=colour, markersize=9, label=label(each.name))
    best = front(loads)
    if len(best) > 1:
        axis.step(
            [each.ttft_ms for each in best], [each.output_tokens_per_s for each in best], where="post", color="#444444", linestyle="--"
        )
    axis.set_xlabel("time to first token, median (ms)")
    axis.set_ylabel("output tokens per second")
    axis.set_title("no run above the line, or left of it" if len(best) > 1 else "")
    _legend(figure, axis)
    return figure


def front(loads: Sequence[Load]) -> list[Load]:
    """The Pareto front by latency: the runs than which none is at least as good in both, and better in one."""
    best: list[Load] = []
    for each in sorted(loads, key=lambda load: (load.ttft_ms, -load.output_tokens_per_s)):
        if not best or each.output_tokens_per_s > best[-1].output_tokens_per_s:
            best.append(each)
    return best


def _legend(figure: Figure, axis: Axes) -> None:
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=2)
