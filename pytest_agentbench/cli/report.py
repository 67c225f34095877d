"""`agentbench report`: writes an HTML report of one or several runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from pytest_agentbench.errors import ConfigError


def add(commands: Any) -> None:
    """Adds the parser of this command."""
    report = commands.add_parser(
        "report",
        help="Write an HTML report of one run, or a comparison page of several",
        example="agentbench report latest --output report.html",
    )
    report.add_argument(
        "names", nargs="*", default=["latest"], metavar="RUN", help="run directories, or their names in reports/ (default: latest)"
    )
    report.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="path of the page (default: report.html, or compared-report.html for several runs, in the directory of the last run)",
    )
    report.takes_reports()
    report.set_defaults(run=run_report)


def run_report(options: argparse.Namespace) -> None:
    """Writes an HTML report of one run, or a comparison page of several, and prints its path."""
    from pytest_agentbench.reports.page import PAGE, write_several
    from pytest_agentbench.runs.run_file import find_run

    directories = [find_run(name, options.reports) for name in options.names]
    target = options.output or directories[-1] / (PAGE if len(directories) == 1 else f"compared-{PAGE}")
    try:
        print(f"wrote {write_several(directories, target, lambda sentence: print(f'agentbench: {sentence}', file=sys.stderr))}")
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error.strerror}; name another file with --output FILE") from error
