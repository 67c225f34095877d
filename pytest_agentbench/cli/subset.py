"""`agentbench subset`: a smaller data file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """The parser of this command."""
    subset = commands.add_parser("subset", help="take a few scenarios of a data file")
    subset.add_argument("input", type=Path)
    subset.add_argument("output", type=Path)
    subset.add_argument("--limit", type=int, default=3, metavar="N", help="how many (default: 3)")
    subset.add_argument("--seed", type=int, help="a random sample instead of the first ones")
    subset.set_defaults(run=run_subset)


def run_subset(options: argparse.Namespace) -> None:
    from pytest_agentbench.suites.datasets.subset import subset

    written = subset(options.input, options.output, options.limit, options.seed)
    print(f"wrote {written} scenarios to {options.output}")
