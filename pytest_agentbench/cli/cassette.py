"""`agentbench cassette trim`: writes the recorded calls of a run to one file, for a backend of `kind: recorded`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Adds the parser of this command."""
    cassette = commands.add_parser(
        "cassette",
        help="Write the recorded LLM calls of a run to one file, from which a backend can answer them again",
        example="agentbench cassette trim latest -o banking.cassette",
    )
    actions = cassette.commands("actions")
    trim = actions.add_parser("trim", help="Write what playing needs: requests and replies, without timestamps, scores and transcripts")
    trim.takes_run()
    trim.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the file; it is replaced if it exists")
    trim.takes_reports()
    trim.set_defaults(run=run_trim)


def run_trim(options: argparse.Namespace) -> None:
    """Writes the file. Prints its size, what it contains, and how to use it."""
    from pytest_agentbench.backends.recorded import recording_facts
    from pytest_agentbench.lib.redact import Redactor
    from pytest_agentbench.recordings.recording import Recording, trim
    from pytest_agentbench.runs.run_file import find_run

    directory = find_run(options.name, options.reports).resolve()
    recording = Recording(directory)
    trim(recording, recording_facts(directory), options.output, Redactor())
    left_out = f" ({recording.incomplete} without a reply are left out)" if recording.incomplete else ""
    size = options.output.stat().st_size / 1e3
    print(f"wrote {options.output} ({size:,.0f} kB): {len(recording.calls):,} calls of {directory.name}{left_out}")
    print(f"to use it: pytest --agentbench-backend=recorded:{options.output}")
