"""`agentbench download ...`: public data sets at a pinned revision."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """The parsers of these commands, one for each data set."""
    download = commands.add_parser("download", help="fetch a public data set at a pinned revision")
    sets = download.commands("data sets")
    leaderboard = sets.add_parser("agent-leaderboard", help="Galileo's customers of banks, insurers, ...; it is converted")
    leaderboard.add_argument(
        "--domains", nargs="+", default=["banking"], metavar="DOMAIN", help="banking healthcare insurance investment telecom"
    )
    leaderboard.add_argument("--revision", help="commit, tag or branch, `main` for the newest (default: a commit that stays the same)")
    leaderboard.add_argument("--output", type=Path, default=Path("data"), metavar="DIR", help="where to write (default: data)")
    leaderboard.set_defaults(run=run_leaderboard)
    exam = sets.add_parser("hle", help="Humanity's Last Exam, which is gated: to who has accepted its terms")
    exam.add_argument("--revision", required=True, help="commit, tag or branch of the data set's repository; its commit is printed")
    exam.add_argument("--output", type=Path, default=Path("data"), metavar="DIR", help="where to write (default: data)")
    exam.set_defaults(run=run_hle)
    tasks = sets.add_parser("openthoughts", help="OpenThoughts' tasks in a terminal, as Harbor has them")
    tasks.add_argument("--dataset", default="tb-dev", metavar="NAME", help="tb-dev (default), tblite, or owner/name of another repository")
    tasks.add_argument("--revision", default="main", help="commit, tag or branch (default: main); its commit is recorded")
    tasks.add_argument("--output", type=Path, metavar="DIR", help="where to write (default: scenarios/openthoughts/NAME)")
    tasks.set_defaults(run=run_openthoughts)


def run_leaderboard(options: argparse.Namespace) -> None:
    """Says what it wrote, file by file."""
    from pytest_agentbench.suites.datasets.hub import REVISION, download

    download(options.domains, options.revision or REVISION, options.output)


def run_hle(options: argparse.Namespace) -> None:
    """Says what it wrote."""
    from pytest_agentbench.suites.datasets.hle_hub import download

    download(options.revision, options.output)


def run_openthoughts(options: argparse.Namespace) -> None:
    """Says what there is, and how to run it."""
    from pytest_agentbench.suites.datasets.openthoughts import download

    download(options.dataset, options.revision, options.output)
