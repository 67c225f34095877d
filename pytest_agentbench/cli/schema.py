"""`agentbench schema`: the JSON Schema of a file."""

from __future__ import annotations

import argparse
import sys
from importlib import resources
from typing import Any

FILES = {"run": "run.json", "rollout": "a line of rollouts.jsonl", "sample": "a line of samples.jsonl", "trend": "trend.json"}


def add(commands: Any) -> None:
    """The parser of this command."""
    schema = commands.add_parser("schema", help="print the JSON Schema of a file that runs are made of, or that is made of runs")
    schema.add_argument("file", choices=FILES, help="; ".join(f"{name}: {what}" for name, what in FILES.items()))
    schema.set_defaults(run=run_schema)


def run_schema(options: argparse.Namespace) -> None:
    """As it is shipped with the records that it describes."""
    sys.stdout.write(resources.files("pytest_agentbench.runs").joinpath("schemas", f"{options.file}.json").read_text(encoding="utf-8"))
