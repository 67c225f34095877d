"""Where the journal of a reference run comes from: it is stored, or another tool's results are imported, or a seed is spread out."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

from benchmarks.reference.generated import ID, Seed, write_files
from benchmarks.reference.rebuild import rebuild
from benchmarks.reference.store import Files
from pytest_agentbench.cli.imported import write
from pytest_agentbench.exports import load_reader
from pytest_agentbench.runs.journal import FILE as JOURNAL
from pytest_agentbench.runs.run_file import Run

SOURCE, TOOL = "source", "tool.json"  # results of another tool, and which
SEED = "seed.json"


def id_of(inputs: Files) -> str:
    """Returns the id of a run, which is the name of its directory."""
    if TOOL in inputs:
        return "imported"
    return ID if SEED in inputs else str(json.loads(inputs["facts.json"])["facts"]["id"])


def run_of(directory: Path) -> Run:
    """Returns the run that the present code makes of unpacked inputs; its journal is in the directory afterwards."""
    if (directory / TOOL).is_file():
        return _imported(json.loads((directory / TOOL).read_text(encoding="utf-8"))["tool"], directory)
    if (directory / SEED).is_file():
        write_files(Seed(**json.loads((directory / SEED).read_text(encoding="utf-8"))), directory)
    return rebuild(directory)


def _imported(tool: str, directory: Path) -> Run:
    """Imports the results once more. When and where that is done is replaced by constants."""
    source = directory / SOURCE
    target, run = write(tool, load_reader(tool)(source), source, None, directory / "reports")
    shutil.copy(target / JOURNAL, directory)
    assert run.imported is not None
    imported = replace(run.imported, path=SOURCE, at=run.finished_at)
    return replace(run, id=directory.name, command=("agentbench", "import", tool, SOURCE), imported=imported)
