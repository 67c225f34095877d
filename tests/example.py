"""The run in reports/example, for readers: `python -m tests.example` makes it again.

`python -m tests.example pages` only writes its pages again, from its run.json, after their texts have changed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pytest_agentbench.lib.process import child_environment
from pytest_agentbench.plots import FOLDER
from pytest_agentbench.reports import comment, markdown, page
from pytest_agentbench.reports.page.pictures import intervals
from pytest_agentbench.reports.view import RunView
from pytest_agentbench.runs.run_file import FILE, read_run
from tests.project import PLACE, ROOT
from tests.report_page import data_of

REPORTS = ROOT / "reports"
#: The run is one folder deeper than the runs of a user, so that commands that search for runs do not find it.
EXAMPLE = REPORTS / "example" / "banking"
PICTURES = ("summary_throughput_vs_tsq.svg", "summary_throughput_histograms.svg")

#: A command that a user would type. With this option the same reports are written on every machine.
SESSION = ("pytest", "scenarios/banking", "--agentbench-ci=gitlab")


def make(directory: Path) -> None:
    """Runs the banking suite on the built-in engine, and keeps what a reader of the run would open."""
    with tempfile.TemporaryDirectory(prefix="agentbench-example-") as name:
        project = Path(name).resolve()
        _do(project, "pytest_agentbench.cli", "init", "banking")
        _do(project, *SESSION)
        _do(project, "pytest_agentbench.cli", "plot", "--format=svg")
        _keep((project / "reports" / "latest").resolve(), project, directory)
    write_pages(directory)


def write_pages(directory: Path) -> None:
    """Writes the pages of a run directory with the texts of the current code."""
    run = read_run(directory)
    markdown.write(run, directory)
    comment.write(run, directory, {})  # Without variables of a CI job there are no links, which differ between machines.
    data, _ = data_of((directory / page.PAGE).read_text(encoding="utf-8"))  # Only the page contains the rollouts.
    page.write_page([RunView(run, directory)], data, intervals(run), directory / page.PAGE)


def _do(project: Path, *words: str) -> None:
    outside = {name: value for name, value in child_environment().items() if not name.startswith(("GITHUB_", "CI_"))}
    environment = {**outside, "PYTEST_ADDOPTS": "-p no:randomly"}  # Users do not have this plugin, which shuffles tests.
    subprocess.run([sys.executable, "-m", *words], cwd=project, env=environment, check=True)


def _keep(run: Path, project: Path, directory: Path) -> None:
    """Copies a run's run.json, page and some pictures, without the path of the project."""
    shutil.rmtree(directory, ignore_errors=True)
    (directory / FOLDER).mkdir(parents=True)
    text = (run / FILE).read_text(encoding="utf-8").replace(str(project), PLACE)
    (directory / FILE).write_text(text, encoding="utf-8")
    shutil.copy(run / page.PAGE, directory)
    for picture in PICTURES:
        shutil.copy(run / FOLDER / picture, directory / FOLDER)


def run_command(words: Sequence[str]) -> None:
    """Makes the run again, or only its pages."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m tests.example", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("run", "pages"), default="run", help="run: the run with its pages (default)")
    what = parser.parse_args(words).what
    (write_pages if what == "pages" else make)(EXAMPLE)
    sys.stdout.write(f"wrote {os.path.relpath(EXAMPLE)}\n")


if __name__ == "__main__":
    run_command(sys.argv[1:])
