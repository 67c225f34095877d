"""`agentbench download`: a public data set at a pinned revision."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pytest_agentbench.lib.loading import load_object
from pytest_agentbench.suites.datasets import DOWNLOADS


def add(commands: Any) -> None:
    """The parser of this command."""
    download = commands.add_parser("download", help="fetch a public data set at a pinned revision and convert it")
    download.add_argument("dataset", choices=[*DOWNLOADS])
    download.add_argument(
        "--domains", nargs="+", default=["banking"], metavar="DOMAIN", help="banking healthcare insurance investment telecom"
    )
    download.add_argument("--revision", required=True, help="commit of the data set's repository")
    download.add_argument("--output", type=Path, default=Path("data"), metavar="DIR", help="where to write (default: data)")
    download.set_defaults(run=run_download)


def run_download(options: argparse.Namespace) -> None:
    """Says what it wrote, file by file."""
    load_object("data set", options.dataset, DOWNLOADS, Path())(options.domains, options.revision, options.output)
