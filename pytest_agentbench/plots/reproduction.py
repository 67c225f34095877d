"""The picture of a reproduced experiment: each method's throughput by concurrency, and its ratio to the baseline at the highest one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_agentbench.plots.canvas import axes, label, mark, save, style, whole
from pytest_agentbench.reproduction.experiment import MeasuredCell, ratio


def draw(cells: Sequence[MeasuredCell], baseline: str, file: Path) -> None:
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
