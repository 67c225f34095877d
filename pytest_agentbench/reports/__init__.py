"""The reports on runs: their contents, their renderers, and the functions that write a file about a finished run.

To add such a file, write a module here with a function `write`, and add a line to REPORTS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_agentbench.lib.user_code import load_object

if TYPE_CHECKING:
    from pytest_agentbench.runs.run_file import Run

PAGE = "html"  # name of the report that contains whole rollouts

#: `write(run, directory)` writes a report, and returns its path.
ReportWriter = Callable[["Run", Path], Path]

REPORTS: Mapping[str, str] = {"md": "pytest_agentbench.reports.markdown:write", PAGE: "pytest_agentbench.reports.page:write"}


def load_report(name: str, known: Mapping[str, str] = REPORTS) -> ReportWriter:
    """Returns the function that writes the report with this name. Raises ConfigError if the name is unknown."""
    report: ReportWriter = load_object("report", name, known, Path())
    return report


def write_reports(run: Run, directory: Path) -> None:
    """Writes all REPORTS of a run into `directory`."""
    for name in REPORTS:
        load_report(name)(run, directory)
