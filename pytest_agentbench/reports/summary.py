"""The step summary of GitHub Actions: the lines of comment.md, and as much of report.md as fits."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_agentbench.reports import comment, markdown
from pytest_agentbench.reports.ci import cut, size, whole_report
from pytest_agentbench.reports.document import Level
from pytest_agentbench.reports.sections import document
from pytest_agentbench.reports.view import RunView
from pytest_agentbench.runs.run_file import Run

LIMIT = 1 << 20  # bytes that a step may write in total; GitHub shows nothing of a longer summary
SPARE = 1 << 10  # bytes left for later commands of the step

VARIABLE = "GITHUB_STEP_SUMMARY"  # variable with the path of the file


def write(run: Run, directory: Path) -> Path:
    """Appends a run to the summary of the workflow step. Outside of GitHub Actions, appends it to summary.md in the run directory."""
    path = Path(os.environ.get(VARIABLE) or directory / "summary.md")
    existing = path.stat().st_size if path.exists() else 0
    view = RunView(run, directory)
    lines = ["", *comment.lines(view), "", *markdown.lines(document(view), Level.VERBOSE), ""]
    text = cut("\n".join(lines), LIMIT - SPARE - existing, whole_report(run.id))
    assert size(text) + existing <= LIMIT or not text
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
    return path
