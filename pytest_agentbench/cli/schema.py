"""`agentbench schema`: the JSON Schema of a file."""

from __future__ import annotations

import argparse
import sys
from importlib import resources
from typing import Any

FILES = {
    "suite": "suite.yaml",
    "backend": "backends/NAME.yaml",
    "run": "run.json",
    "rollout": "a line of rollouts.jsonl",
    "sample": "a line of samples.jsonl",
    "trend": "trend.json",
}


def add(commands: Any) -> None:
    """The parser of this command."""
    schema = commands.add_parser("schema", help="print the JSON Schema of a YAML, or of a file with results")
    schema.add_argument("file", choices=FILES, help="; ".join(f"{name}: {what}" for name, what in FILES.items()))
    schema.set_defaults(run=run_schema)


def run_schema(options: argparse.Namespace) -> None:
    """Prints a schema."""
    sys.stdout.write(schema_text(options.file))


def schema_text(name: str) -> str:
    """Returns the JSON Schema of one of FILES. It is a file of the package."""
    return resources.files("pytest_agentbench.runs").joinpath("schemas", f"{name}.json").read_text(encoding="utf-8")
