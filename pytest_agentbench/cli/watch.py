"""`agentbench watch`: serves a live report of a running session."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Adds the parser of this command."""
    watch = commands.add_parser("watch", help="Serve a live report of a running session on 127.0.0.1", example="agentbench watch")
    watch.add_argument(
        "name", nargs="?", metavar="RUN", help="a run directory, or its name in reports/ (default: the one that was written to last)"
    )
    watch.takes_reports()
    watch.set_defaults(run=run_watch)


def run_watch(options: argparse.Namespace) -> None:
    """Serves the live report of a run until Ctrl-C. Prints its address."""
    from pytest_agentbench.reports.page.live import LiveRun, Loopback, newest

    run = LiveRun(find(options.name, options.reports) if options.name else newest(options.reports))
    with Loopback(run) as server:
        print(f"watching {run.directory}: {server.url}\nCtrl-C ends it", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("no longer watched")


def find(name: str, reports: Path) -> Path:
    """Returns the directory of a running or finished run. Without a name, returns the one that was written to last.

    Raises ConfigError if there is no such run.
    """
    from pytest_agentbench.runs.directory import directory_with
    from pytest_agentbench.runs.journal import FILE

    return directory_with(FILE, name, reports, "it is not a run directory, or no session has begun to write to it").resolve()
