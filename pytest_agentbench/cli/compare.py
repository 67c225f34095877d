"""`agentbench compare`: compares two or more runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_agentbench.cli.output import print_document, print_markdown
from pytest_agentbench.errors import ConfigError

if TYPE_CHECKING:
    from pytest_agentbench.gate.run_comparison import RunComparison

FORMATS = ("text", "markdown")


def add(commands: Any) -> None:
    """Adds the parser of this command."""
    compare = commands.add_parser(
        "compare",
        help="Compare several runs in one table: setup, scores, speed, changed scenarios",
        example="agentbench compare monday tuesday",
    )
    compare.add_argument("names", nargs="+", metavar="RUN", help="run directories, their names in reports/, or a directory of runs")
    compare.add_argument("--reference", metavar="RUN", help="the run that the others are compared with (default: the first)")
    compare.add_argument("--format", choices=FORMATS, default=FORMATS[0], help=f"output format (default: {FORMATS[0]})")
    compare.add_argument(
        "--details",
        action="store_true",
        help="also list the scenarios that differ in any score, and those left out (two runs are always listed like this)",
    )
    compare.takes_reports()
    compare.set_defaults(run=run_compare)


def run_compare(options: argparse.Namespace) -> None:
    """Prints the comparison as text or Markdown."""
    from pytest_agentbench.reports.sections.runs_compared import MOST, WIDTH, document, with_short_names

    runs = _read(options)
    details = options.details or len(runs.runs) == 2
    if options.format == "text":
        print_document(document(with_short_names(runs), details=details, most=MOST), WIDTH)
    else:
        print_markdown(document(runs, details=details))


def _read(options: argparse.Namespace) -> RunComparison:
    """Returns the runs, the reference first. Raises ConfigError if there are fewer than two."""
    from pytest_agentbench.cli.parser import runs_of
    from pytest_agentbench.gate.run_comparison import RunComparison, distinct
    from pytest_agentbench.gate.run_pair import read
    from pytest_agentbench.runs.directory import name_of
    from pytest_agentbench.runs.run_file import find_run

    named = [directory for name in options.names for directory in runs_of(name, options.reports)]
    first = [find_run(options.reference, options.reports)] if options.reference else []
    runs: dict[Path, Path] = {}  # resolved directory -> directory as given; a run that is named twice counts once
    for directory in (*first, *named):
        runs.setdefault(directory.resolve(), directory)
    if len(runs) < 2:
        raise ConfigError(f"{', '.join(map(str, runs.values()))} is only one run; name two or more runs to compare")
    names = [name_of(directory) or directory.name for directory in runs]
    return RunComparison(distinct(names), tuple(map(read, runs.values())))
