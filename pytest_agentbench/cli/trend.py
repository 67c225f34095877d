"""`agentbench trend`: writes a page with the history of suites."""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path
from typing import Any

from pytest_agentbench.cli.output import print_document
from pytest_agentbench.errors import ConfigError


def add(commands: Any) -> None:
    """Adds the parser of this command."""
    trend = commands.add_parser(
        "trend", help="Write a page with the history of each suite: scores, latencies, regressions", example="agentbench trend reports"
    )
    trend.add_argument(
        "directory",
        type=Path,
        nargs="?",
        default=Path("reports"),
        metavar="DIR",
        help="a directory of runs or baselines (default: reports)",
    )
    trend.add_argument("--output", type=Path, metavar="DIR", help="where to write trend.html and trend.json (default: next to the runs)")
    trend.set_defaults(run=run_trend)


def run_trend(options: argparse.Namespace) -> None:
    """Writes the history of the suites. Prints its period, each regression, which runs were left out, and the written files."""
    from pytest_agentbench.gate.trend import read_history, trend_of
    from pytest_agentbench.reports.trend import document, web_address, write

    trend = trend_of(read_history(options.directory))
    print_document(document(trend))
    target = options.output or options.directory
    try:
        target.mkdir(parents=True, exist_ok=True)
        files = write(trend, target, options.directory, web_address(_remote(options.directory)))
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error.strerror}; name another directory with --output DIR") from error
    for file in files:
        print(f"wrote {file}")


def _remote(directory: Path) -> str:
    """Returns the address of the remote `origin` of the repository that contains a directory. Empty without one."""
    try:
        command = ["git", "-C", str(directory), "remote", "get-url", "origin"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
