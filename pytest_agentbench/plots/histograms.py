"""Histograms of each measure of rollouts. Measures that calls have, such as TTFT, are counted over calls."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from pytest_agentbench.plots.canvas import AXES, COLOURS, axes, figures, shown, whole
from pytest_agentbench.plots.points import Points

TTFT_BIN, TTFT_END = 5, 500  # bin width, and longest time with such bins, in milliseconds
BINS = {"ttft": 100, "itl": 100, "tps": 100, "total_tokens": 50, "llm_calls": 25, "total_duration": 25}


def pictures(points: Points) -> dict[str, Figure]:
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
