"""Makes a reference run from its stored inputs: a journal, results of another tool to import, or the seed of a generated run."""

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
    """Returns the run that the present code makes from unpacked inputs. Afterwards its journal is in the directory."""
    if (directory / TOOL).is_file():
        return _imported(json.loads((directory / TOOL).read_text(encoding="utf-8"))["tool"], directory)
    if (directory / SEED).is_file():
        write_files(Seed(**json.loads((directory / SEED).read_text(encoding="utf-8"))), directory)
    return rebuild(directory)


def _imported(tool: str, directory: Path) -> Run:
    """Imports the results of another tool again. Replaces the time and the paths of the import by constants."""
    source = directory / SOURCE
    target, run = write(tool, load_reader(tool)(source), source, None, directory / "reports")
    shutil.copy(target / JOURNAL, directory)
    assert run.imported is not None
    imported = replace(run.imported, path=SOURCE, at=run.finished_at)
    return replace(run, id=directory.name, command=("agentbench", "import", tool, SOURCE), imported=imported)
