"""`agentbench diff`: what differs between two runs."""

from __future__ import annotations

import argparse
from typing import Any

from pytest_agentbench.cli.plain import PlainOutput


def add(commands: Any) -> None:
    """The parser of this command."""
    diff = commands.add_parser("diff", help="say what differs between two runs: their setup, their scores, their speed")
    diff.add_argument("old", metavar="OLD", help="a run directory, its name in reports/, or latest")
    diff.add_argument("new", metavar="NEW", help="the run that is compared with it")
    diff.takes_reports()
    diff.set_defaults(run=run_diff)


def run_diff(options: argparse.Namespace) -> None:
    from pytest_agentbench.gate.diff import read
    from pytest_agentbench.reports.diff import write_diff
    from pytest_agentbench.runs.run_file import find_run

    old, new = (read(find_run(name, options.reports)) for name in (options.old, options.new))
    write_diff(PlainOutput(), old, new)
