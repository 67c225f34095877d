"""How pictures look: sizes that can be read at half of them, and colours that everybody can tell apart."""

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

#: Colours that people with any colour vision tell apart (Okabe and Ito 2008), the darker ones first.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
#: Shapes beside them, for prints without colours.
SHAPES = ("o", "s", "^", "D", "v", "P", "X", "*")

STYLE: Any = {  # keys are names that matplotlib types one by one
    "font.size": 15,
    "axes.titlesize": 16,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.formatter.useoffset": False,  # ticks are numbers, and none of them `1` of `+2.976e4`
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text, which can be searched
    "svg.hashsalt": "agentbench",  # the same run gives the same file
}

CHARACTER = 8.3  # points that one of a legend takes, in the mean
LINE = 0.3  # inches that a line of a legend takes
LONGEST = 64  # characters of a name, for which one column of the narrowest picture has room
BESIDE = 7  # characters that a mark and the distance to the next one take

#: Measure -> its axis.
AXES = {
    "ttft": "time to first token (ms)",
    "itl": "inter-token latency, median of a call (ms)",
    "tps": "output tokens per second of a call",
    "total_tokens": "output tokens of the rollout",
    "llm_calls": "LLM calls of the rollout",
    "total_duration": "duration of the rollout (s)",
}


def style() -> AbstractContextManager[None]:
    """Within it figures are made and saved in one style; what else draws in this process keeps its own."""
    return mpl.rc_context(STYLE)


def axes(columns: int = 1, rows: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure with axes, row by row."""
    figure = Figure(figsize=(9 if columns == 1 else 6.5 * columns, 6 if rows == 1 else 5.2 * rows), layout="constrained")
    return figure, [*np.atleast_1d(figure.subplots(rows, columns)).flat]


def save(figure: Figure, file: Path) -> None:
    """Writes a figure in the format that the file's name ends in."""
    figure.savefig(file, dpi=110, metadata={"Date": None} if file.suffix == ".svg" else {})


def groups(points: Points) -> Iterator[tuple[str, str, str, NDArray[np.bool_]]]:
    """(name, colour, shape, its points) of each kind that has a colour of its own; all of them under one name where colours are numbers."""
    for kind, colour, shape in zip(points.kinds or [""], COLOURS, SHAPES, strict=False):
        yield kind, colour, shape, np.ones(len(points.values), dtype=bool) if points.kinds is None else points.colours == kind


def mark(number: int) -> tuple[str, str]:
    """(colour, shape) of the one at a place: no two of the first 64 have both in common."""
    return COLOURS[number % len(COLOURS)], SHAPES[(number + number // len(COLOURS)) % len(SHAPES)]


def label(name: str) -> str:
    """A name in a legend; of a long one the middle is left out, since names of runs and arms begin alike."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST // 2 - 2]}...{name[1 - LONGEST // 2 :]}"


def legend(figure: Figure, axis: Axes, title: str | None = None) -> None:
    """The labels of an axis below the picture, in as many columns as fit beside each other; the picture grows by what they take."""
    handles, labels = axis.get_legend_handles_labels()
    fitting = figure.get_figwidth() * 72 / CHARACTER / (max(map(len, labels), default=0) + BESIDE)
    columns = max(1, min(4, len(labels), int(fitting)))
    figure.set_figheight(figure.get_figheight() + LINE * -(-len(labels) // columns))
    box = figure.legend(handles, labels, loc="outside lower center", ncols=columns, title=title)
    figure.draw_without_rendering()
    if (width := box.get_window_extent().width) > figure.bbox.width:  # of letters that are wider than most
        figure.set_figwidth(width / figure.dpi)


def figures(axis: Axes, text: str) -> None:
    """Numbers above a picture, where they hide nothing."""
    axis.set_title(text, loc="right", fontsize=12)


def shown(value: float) -> str:
    """A number as people read it: `29,550`, `46.8`, `0.142`."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def whole(*axes: Axis) -> None:
    """Ticks of an axis that counts."""
    for axis in axes:
        axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
