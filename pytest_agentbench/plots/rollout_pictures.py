"""Pictures of rollouts: scatter plots of quality against each measure, and histograms of each measure.

A scatter plot has a point for each rollout. In histograms, measures that calls have, such as TTFT, are counted over calls.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from pytest_agentbench.plots import canvas
from pytest_agentbench.plots.canvas import AXES, COLOURS, axes, figures, groups, label, shown, whole
from pytest_agentbench.plots.points import Points

FEWEST = 3  # minimum number of points for a line

#: Measure -> label of its axis. Measures of calls are medians over the calls of a rollout.
SCATTER_AXES = {
    **canvas.AXES,
    "ttft": "time to first token, median of its calls (ms)",
    "itl": "inter-token latency, median of its calls (ms)",
    "tps": "output tokens/s, median of its calls",
}


def scatter_pictures(points: Points) -> dict[str, Figure]:
    """Returns file name without suffix -> figure: a scatter plot for each measure, and one picture of all."""
    drawn = {f"{measure}_vs_{points.score}": _single(points, measure) for measure in SCATTER_AXES if measure != "total_duration"}
    return {**drawn, f"summary_throughput_vs_{points.score}": _summary(points)}


def _single(points: Points, measure: str) -> Figure:
    figure, [axis] = axes()
    scatter(axis, points, measure)
    legend(figure, axis, points)
    return figure


def _summary(points: Points) -> Figure:
    figure, all_axes = axes(3, 2)
    for axis, measure in zip(all_axes, SCATTER_AXES, strict=True):
        scatter(axis, points, measure)
    figure.suptitle(f"{points.score} of {len(points.values)} rollout{'s' * (len(points.values) != 1)}")
    legend(figure, all_axes[0], points)
    return figure


def scatter(axis: Axes, points: Points, measure: str) -> None:
    """Draws the points, and a least-squares line with its correlation r if there are enough points."""
    values = points.measures[measure]
    known = ~np.isnan(values)
    for name, colour, shape, members in groups(points):
        chosen = members & known
        if points.kinds is None:
            drawn = axis.scatter(values[chosen], points.values[chosen], c=points.colours[chosen], cmap="viridis", s=46, alpha=0.8)
            drawn.set_gid("numbers")
        else:
            axis.scatter(values[chosen], points.values[chosen], c=colour, marker=shape, s=46, alpha=0.7, label=label(name))
    axis.set_xlabel(SCATTER_AXES[measure])
    axis.set_ylabel(f"{points.score} (per rollout)")
    if measure == "llm_calls":
        whole(axis.xaxis)
    if fit := line(values[known], points.values[known]):
        slope, start, r = fit
        ends = np.array([values[known].min(), values[known].max()])
        axis.plot(ends, start + slope * ends, color="#444444", linestyle="--", linewidth=1.5)
        figures(axis, f"n {known.sum()}, r {r:+.2f}")
    elif not known.any():
        axis.text(0.5, 0.5, "not measured", transform=axis.transAxes, ha="center", va="center")


def line(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float, float] | None:
    """Returns (slope, value at 0, r) by least squares, or None for fewer than three points, or if x or y does not vary."""
    if len(x) < FEWEST or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    slope, start = np.polyfit(x, y, 1)
    return float(slope), float(start), float(np.corrcoef(x, y)[0, 1])


def legend(figure: Figure, axis: Axes, points: Points) -> None:
    """Adds a colour scale, or a legend below the picture. If all points have one colour, adds neither."""
    if points.kinds is None:
        drawn = next(each for each in axis.collections if each.get_gid() == "numbers")
        figure.colorbar(drawn, ax=figure.axes, label=points.color_by)
    elif len(points.kinds) > 1:
        canvas.legend(figure, axis, points.color_by)


TTFT_BIN, TTFT_END = 5, 500  # bin width, and longest time with such bins, in milliseconds
BINS = {"ttft": 100, "itl": 100, "tps": 100, "total_tokens": 50, "llm_calls": 25, "total_duration": 25}


def histogram_pictures(points: Points) -> dict[str, Figure]:
    """Returns file name without suffix -> figure: a histogram of each measure, and one picture of all."""
    drawn = {}
    for measure in AXES:
        figure, [axis] = axes()
        histogram(axis, points, measure)
        drawn[f"{measure}_histogram"] = figure
    figure, all_axes = axes(3, 2)
    for axis, measure in zip(all_axes, AXES, strict=True):
        histogram(axis, points, measure)
    return {**drawn, "summary_throughput_histograms": figure}


def histogram(axis: Axes, points: Points, measure: str) -> None:
    """Draws a histogram of a measure, with a line at the median, and statistics above the picture."""
    values = points.calls.get(measure, points.measures[measure])
    values = values[~np.isnan(values)]
    axis.set_xlabel(AXES[measure])
    axis.set_ylabel("LLM calls" if measure in points.calls else "rollouts")
    if not len(values):
        axis.text(0.5, 0.5, "not measured", transform=axis.transAxes, ha="center", va="center")
        return
    axis.hist(values, edges(values, measure).tolist(), color=COLOURS[0], alpha=0.85)
    p10, median, p90 = np.percentile(values, (10, 50, 90))
    axis.axvline(median, color=COLOURS[1], linestyle=":", linewidth=2.5)
    whole(axis.yaxis, *[axis.xaxis] * (measure == "llm_calls"))
    spread = f"P10 {shown(p10)}, P90 {shown(p90)}, standard deviation {shown(values.std())}"
    figures(axis, f"n {len(values):,}, mean {shown(values.mean())}, median {shown(median)}\n{spread}")


def edges(values: NDArray[np.float64], measure: str) -> NDArray[np.float64]:
    """Returns the edges of the bins of a histogram.

    TTFT has bins of 5 ms if no value exceeds 500 ms. Numbers of LLM calls have a bin each if their range is small.
    """
    if measure == "ttft" and values.max() <= TTFT_END:
        return np.arange(0.0, (values.max() // TTFT_BIN + 2) * TTFT_BIN, TTFT_BIN)
    if measure == "llm_calls" and np.ptp(values) < BINS[measure]:
        return np.arange(values.min() - 0.5, values.max() + 1.5)
    return np.histogram_bin_edges(values, BINS[measure])
