"""`agentbench export`: converts runs to files of other tools."""

from __future__ import annotations

import argparse
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports import EXPORTS, Writer, load_writer
from pytest_agentbench.runs.directory import PRIVATE

if TYPE_CHECKING:
    from pytest_agentbench.exports.files import ChosenRuns


def add(commands: Any) -> None:
    """Adds the parser of this command."""
    export = commands.add_parser(
        "export", help="Convert runs to the file formats of other tools", example="agentbench export latest --as csv --output tables"
    )
    export.add_argument(
        "names", nargs="*", default=["latest"], metavar="RUN", help="run directories, or their names in reports/ (default: latest)"
    )
    export.add_argument(
        "--as", dest="tool", required=True, metavar="FORMAT", help=f"one of: {' '.join(EXPORTS)}, or the import path of a writer"
    )
    export.add_argument("--output", type=Path, metavar="DIR", help="a new directory for the files (default for one run: RUN/FORMAT)")
    export.add_argument(
        "--exact", action="store_true", help="keep texts of CSV files exact, even if a spreadsheet would read them as formulas"
    )
    export.takes_reports()
    export.set_defaults(run=run_export)


def run_export(options: argparse.Namespace) -> None:
    """Writes the files of another tool, and prints their names and what they lack."""
    from pytest_agentbench.exports.files import ChosenRuns
    from pytest_agentbench.lib.foreign import one_line
    from pytest_agentbench.runs.run_file import find_run

    writer = load_writer(options.tool)
    chosen = ChosenRuns([find_run(name, options.reports) for name in options.names], exact=options.exact)
    folder = re.sub(r"[^\w-]", "_", options.tool)
    for file in written(writer, chosen, options.output or in_run(chosen, folder, "files")):
        print(f"wrote {file}")
    for note in chosen.notes:
        print(f"note: {one_line(note)}")


def in_run(chosen: ChosenRuns, folder: str, what: str) -> Path:
    """Returns the default output folder of an export: the folder of this name in the run directory.

    Raises ConfigError if several runs are exported, because they have no common directory. `what` names the files in the message.
    """
    if (count := len(chosen.origins)) > 1:
        raise ConfigError(f"{count} runs have no common directory for the {what}; name one with --output DIR")
    return chosen.origins[0].directory / folder


def written(writer: Writer, chosen: ChosenRuns, output: Path) -> list[Path]:
    """Writes a new directory with `writer`, completely or not at all. Returns its files. Raises ConfigError if that fails."""
    if output.exists():
        raise ConfigError(f"{output} exists already; remove it, or name another directory with --output DIR")
    draft = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        draft.mkdir(PRIVATE, parents=True)
        writer(chosen, draft)
        draft.rename(output)
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error.strerror or error}; name another directory with --output DIR") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return sorted(file for file in output.rglob("*") if file.is_file())
