"""Pictures that compare runs, the levels of a sweep, or the methods of a reproduced experiment.

- Runs: quality against speed, and throughput against latency. Each arm of an A/B session is a point of its own, with the rates of the time
  in which that arm ran.
- A study: two objectives of its trials.
- A sweep: throughput against latency, and the share of good calls, at each concurrency.
- An experiment: each method's throughput by concurrency, and its ratio to the baseline at the highest one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pytest_agentbench.optimize.search import RankedTrial
from pytest_agentbench.optimize.space import QUALITY
from pytest_agentbench.plots.canvas import COLOURS, axes, label, legend, mark, save, style, whole
from pytest_agentbench.records import arm_of
from pytest_agentbench.reproduction.experiment import MeasuredCell, ratio
from pytest_agentbench.runs.results import Mean
from pytest_agentbench.runs.run_file import Run
from pytest_agentbench.sweep.levels import Criteria, LevelVerdict, Operation, knee


class Quality(NamedTuple):
    """A point of the picture `quality_vs_speed`: the main score of a suite, and the speed of its run or arm."""

    name: str
    mean: Mean
    rollouts_per_hour: float


class RunLoad(NamedTuple):
    """A point of the picture `throughput_vs_latency`: the TTFT and the throughput of a run or an arm."""

    name: str
    ttft_ms: float  # median
    output_tokens_per_s: float


def pictures(runs: Sequence[Run], ttfts: Sequence[Mapping[str, float]]) -> dict[str, Figure]:
    """Returns file name without suffix -> figure. Without measured runs, returns no figures.

    `ttfts` has a mapping for each run: arm -> median TTFT in milliseconds.
    """
    named = titles(runs)
    qualities = [each for run, title in zip(runs, named, strict=True) for each in qualities_of(run, title)]
    loads = [each for run, title, of_arms in zip(runs, named, ttfts, strict=True) for each in loads_of(run, title, of_arms)]
    drawn = {"quality_vs_speed": _quality(qualities)} if qualities else {}
    return {**drawn, "throughput_vs_latency": _throughput(loads)} if loads else drawn


def titles(runs: Sequence[Run]) -> list[str]:
    """Returns the names of runs for legends: the name that the user gave if it is unique, otherwise the id."""
    counts = Counter(run.name for run in runs)
    return [run.name if run.name and counts[run.name] == 1 else run.id for run in runs]


def qualities_of(run: Run, title: str) -> Iterator[Quality]:
    """Yields a point for each measured suite of a run."""
    of_arms = {arm.name: arm.metrics["rollouts_per_hour"] for arm in run.ab.arms} if run.ab else {}
    for name, suite in run.suites.items():
        speed = of_arms.get(arm_of(suite.variant)) if run.ab else run.performance.number("rollouts_per_hour")
        if (mean := suite.main_mean) and mean.value is not None and speed:
            yield Quality(f"{title} {name}", mean, speed)


def loads_of(run: Run, title: str, ttfts: Mapping[str, float]) -> Iterator[RunLoad]:
    """Yields TTFT and throughput of a run, or of each of its measured arms. `ttfts` maps arms to their median TTFT in milliseconds."""
    if run.ab:
        rates = {arm.name: arm.metrics["output_tokens_per_s"] for arm in run.ab.arms}
        yield from (RunLoad(f"{title} {arm}", ttfts[arm], rate) for arm, rate in rates.items() if rate and arm in ttfts)
        return
    ttft, rate = run.performance.latency("ttft"), run.performance.number("output_tokens_per_s")
    if ttft and ttft.p50 is not None and rate:
        yield RunLoad(title, ttft.p50, rate)


def _quality(qualities: Sequence[Quality]) -> Figure:
    figure, [axis] = axes()
    for number, each in enumerate(qualities):
        colour, shape = mark(number)
        value, low, high = each.mean.value or 0.0, each.mean.low, each.mean.high
        spread = None if low is None or high is None else [[value - low], [high - value]]
        axis.errorbar(each.rollouts_per_hour, value, spread, fmt=shape, color=colour, markersize=9, capsize=4, label=label(each.name))
    axis.set_xlabel("rollouts per hour")
    axis.set_ylabel("mean of the main score, 95 % interval")
    legend(figure, axis)
    return figure


def _throughput(loads: Sequence[RunLoad]) -> Figure:
    figure, [axis] = axes()
    for number, each in enumerate(loads):
        colour, shape = mark(number)
        axis.plot(each.ttft_ms, each.output_tokens_per_s, shape, color=colour, markersize=9, label=label(each.name))
    best = front(loads)
    if len(best) > 1:
        axis.step(
            [each.ttft_ms for each in best], [each.output_tokens_per_s for each in best], where="post", color="#444444", linestyle="--"
        )
    axis.set_xlabel("time to first token, median (ms)")
    axis.set_ylabel("output tokens per second")
    axis.set_title("dashed: no run is better in both" if len(best) > 1 else "")
    legend(figure, axis)
    return figure


def front(loads: Sequence[RunLoad]) -> list[RunLoad]:
    """Returns the Pareto front, sorted by latency: the runs that no other run beats in one metric without being worse in the other."""
    best: list[RunLoad] = []
    for each in sorted(loads, key=lambda load: (load.ttft_ms, -load.output_tokens_per_s)):
        if not best or each.output_tokens_per_s > best[-1].output_tokens_per_s:
            best.append(each)
    return best


def draw_sweep(operations: Sequence[Operation], judged: Sequence[LevelVerdict], terms: Criteria, file: Path) -> None:
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


def draw_pareto(trials: Sequence[RankedTrial], best: Sequence[RankedTrial], objectives: Sequence[str], file: Path) -> None:
    """Writes the picture of the first two objectives of a study. The trials in `best` are those that no other one is better than."""
    on_front = {each.number for each in best}
    with style():
        figure, [axis] = axes(columns=1)
        for each in trials:
            if len(each.values) > 1:
                colour = COLOURS[0] if each.number in on_front else "#999999"
                axis.plot(each.values[0], each.values[1], "o", color=colour, markersize=9)
                axis.annotate(str(each.number), (each.values[0], each.values[1]), (8, -16), textcoords="offset points")
        axis.set_xlabel(_objective_text(objectives[0]))
        axis.set_ylabel(_objective_text(objectives[1]))
        axis.set_title("trials of the search; grey: another one is better in both", fontsize=12)
        save(figure, file)


def _objective_text(name: str) -> str:
    return "loss of quality" if name == QUALITY else f"{name}, logarithm of the ratio to the default settings"


def draw_experiment(cells: Sequence[MeasuredCell], baseline: str, file: Path) -> None:
    """Writes the picture of a reproduced experiment. The file's suffix is its format. `baseline` is the method that is drawn first."""
    with style():
        figure, [axis] = axes()
        methods = sorted({cell.method for cell in cells}, key=lambda method: (method != baseline, method))
        for number, method in enumerate(methods):
            own = [cell for cell in cells if cell.method == method and cell.steps_per_min is not None]
            colour, shape = mark(number)
            axis.plot(
                [cell.concurrency for cell in own],
                [cell.steps_per_min or 0.0 for cell in own],
                marker=shape,
                color=colour,
                markersize=9,
                label=label(method),
            )
            if own and method != baseline and (gain := ratio(own[-1], cells, baseline)) is not None:
                axis.annotate(f"{gain:.2f}x", (own[-1].concurrency, own[-1].steps_per_min or 0.0), (8, 4), textcoords="offset points")
        axis.set_xlabel("parallel workflow number")
        axis.set_ylabel("throughput (steps/min)")
        axis.set_ylim(bottom=0)
        axis.margins(x=0.1)
        whole(axis.xaxis)
        axis.legend(loc="best")
        save(figure, file)
