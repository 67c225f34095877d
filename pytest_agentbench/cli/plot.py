"""`agentbench plot`: plots scores and speed of runs."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from pytest_agentbench.cli.export import in_run, written
from pytest_agentbench.cli.parser import runs_of
from pytest_agentbench.plots import FOLDER, FORMATS, draw, left_out


def add(commands: Any) -> None:
    """Adds the parser of this command."""
    plot = commands.add_parser("plot", help="Plot scores and speed of one or more runs", example="agentbench plot latest --format svg")
    runs = "run directories, their names in reports/, or a directory of runs (default: latest)"
    plot.add_argument("names", nargs="*", default=["latest"], metavar="RUN", help=runs)
    plot.add_argument("--output", type=Path, metavar="DIR", help=f"a new directory for the files (default for one run: RUN/{FOLDER})")
    plot.add_argument("--score", metavar="NAME", help="the score on the quality axis (default: the main score)")
    plot.add_argument(
        "--color-by",
        metavar="NAME",
        help="colour by a column of the rollouts table, or by a setting (default: run, or the setting that separates the points best)",
    )
    plot.add_argument("--format", choices=FORMATS, default=FORMATS[0], help=f"file format (default: {FORMATS[0]})")
    plot.takes_reports()
    plot.set_defaults(run=run_plot)


def run_plot(options: argparse.Namespace) -> None:
    """Draws the plots. Prints each written file, and which data could not be drawn."""
    from pytest_agentbench.exports.files import ChosenRuns
    from pytest_agentbench.reports import markdown

    chosen = ChosenRuns([directory for name in options.names for directory in runs_of(name, options.reports)])
    writer = partial(draw, score=options.score, color_by=options.color_by, format=options.format)
    for file in written(writer, chosen, options.output or in_run(chosen, FOLDER, "pictures")):
        print(f"wrote {file}")
    if sentence := left_out(chosen, options.score):
        print(sentence)
    if options.output is None:
        [origin] = chosen.origins
        print(f"{markdown.write(chosen.run_of(origin), origin.directory)} has links to them")
