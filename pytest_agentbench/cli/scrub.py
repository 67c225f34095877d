"""`agentbench scrub`: redacts secrets in the logs of a run whose session could not do it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Adds the parser of this command."""
    scrub = commands.add_parser(
        "scrub", help="Redact API keys and secret values in the logs of a directory", example="agentbench scrub reports"
    )
    scrub.add_argument("directory", type=Path, nargs="?", default=Path("reports"), metavar="DIR", help="the directory (default: reports)")
    scrub.set_defaults(run=run_scrub)


def run_scrub(options: argparse.Namespace) -> None:
    from pytest_agentbench.errors import AgentbenchError, ConfigError
    from pytest_agentbench.lib.redact import Redactor, scrub

    if not options.directory.is_dir():
        raise ConfigError(f"{options.directory} is not a directory; name the one that contains the logs")
    cleaned, failed = scrub(options.directory, Redactor())
    for log in cleaned:
        print(f"scrubbed {log}")
    if failed:
        raise AgentbenchError("; ".join(f"{log}: {error.strerror}; its secrets are still in it" for log, error in failed.items()))
    print(f"{len(cleaned)} logs had secrets in them" if cleaned else "no log had a secret in it")
