"""`agentbench schema`: prints the JSON Schema of a file."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

FILES = {
    "suite": "suite.yaml",
    "backend": "backends/NAME.yaml",
    "run": "run.json",
    "rollout": "a line of rollouts.jsonl",
    "sample": "a line of samples.jsonl",
    "kv-event": "a line of kv_events.jsonl",
    "trend": "trend.json",
}


def add(commands: Any) -> None:
    """Adds the parser of this command."""
    schema = commands.add_parser(
        "schema", help="Print the JSON Schema of a YAML file or of a result file", example="agentbench schema suite"
    )
    schema.add_argument("file", choices=FILES, help="; ".join(f"{name}: {what}" for name, what in FILES.items()))
    schema.set_defaults(run=run_schema)


def run_schema(options: argparse.Namespace) -> None:
    sys.stdout.write(schema_text(options.file))


def schema_text(name: str) -> str:
    """Returns the JSON Schema of one of FILES as text. It is generated from the Python class of the file."""
    from pytest_agentbench.schemas import schema

    return json.dumps(schema(name), indent=2) + "\n"
