"""`agentbench weights ...`: downloads the weights of models."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Adds the parser of this command."""
    weights = commands.add_parser(
        "weights", help="Download model weights", example="agentbench weights get meta-llama/Llama-3.3-70B-Instruct"
    )
    verbs = weights.commands()
    get = verbs.add_parser("get", help="Download a model from the Hugging Face hub, after checking licence, token and disk space")
    get.add_argument("model", help="for example meta-llama/Llama-3.3-70B-Instruct")
    get.add_argument("--to", type=Path, metavar="DIR", help="a folder for the model (default: the hub's cache, where engines find it)")
    get.add_argument("--revision", default="main", help="commit, tag or branch (default: main)")
    get.set_defaults(run=run_get)


def run_get(options: argparse.Namespace) -> None:
    from pytest_agentbench.backends.machine.model_files import get

    print(get(options.model, options.to, options.revision))
