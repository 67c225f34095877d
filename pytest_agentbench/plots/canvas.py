"""Creates and saves pictures in one style. They stay legible at half their size and for colour-blind readers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from pytest_agentbench.plots.points import Points

#: Colours that colour-blind readers can distinguish (Okabe and Ito 2008), the darker ones first.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
#: Shapes that go with the colours, for prints without colours.
SHAPES = ("o", "s", "^", "D", "v", "P", "X", "*")

STYLE: Any = {  # Any, because matplotlib types each key
    "font.size": 15,
    "axes.titlesize": 16,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.formatter.useoffset": False,  # no offsets such as `+2.976e4` at an axis
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text, so that it can be searched
    "svg.hashsalt": "agentbench",  # the same run always gives the same file
}

CHARACTER = 8.3  # mean width of a character in a legend, in points
LINE = 0.3  # height of a line of a legend, in inches
LONGEST = 64  # maximum characters of a name, so that it fits into the narrowest picture
BESIDE = 7  # width of a mark and of the gap to the next one, in characters

#: Measure -> label of its axis.
AXES = {
    "ttft": "time to first token (ms)",
    "itl": "inter-token latency, median of a call (ms)",
    "tps": "output tokens per second of a call",
    "total_tokens": "output tokens of the rollout",
    "llm_calls": "LLM calls of the rollout",
    "total_duration": "duration of the rollout (s)",
}


def style() -> AbstractContextManager[None]:
    """Returns a context in which figures are made and saved in our style. Other figures of the process are not affected."""
    return mpl.rc_context(STYLE)


def axes(columns: int = 1, rows: int = 1) -> tuple[Figure, list[Axes]]:
    """Creates a figure. Returns the figure and the list of its axes, row by row."""
    figure = Figure(figsize=(9 if columns == 1 else 6.5 * columns, 6 if rows == 1 else 5.2 * rows), layout="constrained")
    return figure, [*np.atleast_1d(figure.subplots(rows, columns)).flat]


def save(figure: Figure, file: Path) -> None:
    """Writes a figure to a file. The suffix of the file's name is the format, for example `.svg`."""
    figure.savefig(file, dpi=110, metadata={"Date": None} if file.suffix == ".svg" else {})


def groups(points: Points) -> Iterator[tuple[str, str, str, NDArray[np.bool_]]]:
    """Yields (name, colour, shape, mask) of each group of points with one colour. If colours stand for numbers, yields one group of all."""
    for kind, colour, shape in zip(points.kinds or [""], COLOURS, SHAPES, strict=False):
        yield kind, colour, shape, np.ones(len(points.values), dtype=bool) if points.kinds is None else points.colours == kind


def mark(number: int) -> tuple[str, str]:
    """Returns colour and shape of the n-th item. No two of the first 64 items have the same pair."""
    return COLOURS[number % len(COLOURS)], SHAPES[(number + number // len(COLOURS)) % len(SHAPES)]


def label(name: str) -> str:
    """Shortens a name for a legend. The middle is left out, because names of runs and arms often start with the same text."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST // 2 - 2]}...{name[1 - LONGEST // 2 :]}"


def legend(figure: Figure, axis: Axes, title: str | None = None) -> None:
    """Adds a legend below the picture, with as many columns as fit, and enlarges the picture by its height."""
    handles, labels = axis.get_legend_handles_labels()
    fitting = figure.get_figwidth() * 72 / CHARACTER / (max(map(len, labels), default=0) + BESIDE)
    columns = max(1, min(4, len(labels), int(fitting)))
    figure.set_figheight(figure.get_figheight() + LINE * -(-len(labels) // columns))
    box = figure.legend(handles, labels, loc="outside lower center", ncols=columns, title=title)
    figure.draw_without_rendering()
    if (width := box.get_window_extent().width) > figure.bbox.width:  # if the letters are wider than CHARACTER
        figure.set_figwidth(width / figure.dpi)


def figures(axis: Axes, text: str) -> None:
    """Writes a line of statistics above a picture, so that it covers no data."""
    axis.set_title(text, loc="right", fontsize=12)


def shown(value: float) -> str:
    """Formats a number for a picture: `29,550`, `46.8`, `0.142`."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def whole(*axes: Axis) -> None:
    """Makes the ticks of some axes integers."""
    for axis in axes:
        axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
