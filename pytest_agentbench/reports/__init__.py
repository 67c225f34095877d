"""Reports: each writes one file about a finished run. A new one is a file here and a line in REPORTS."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_agentbench.lib.user_code import load_object

if TYPE_CHECKING:
    from pytest_agentbench.runs.run_file import Run

PAGE = "html"  # the report that has rollouts as a whole

#: `write(run, directory) -> path`.
ReportWriter = Callable[["Run", Path], Path]

REPORTS: Mapping[str, str] = {"md": "pytest_agentbench.reports.markdown:write", PAGE: "pytest_agentbench.reports.page:write"}


def load_report(name: str, known: Mapping[str, str] = REPORTS) -> ReportWriter:
    """The function behind a report's name; raises ConfigError for an unknown one, with the known ones."""
    report: ReportWriter = load_object("report", name, known, Path())
    return report


def write_reports(run: Run, directory: Path) -> None:
    """All reports of a run."""
    for name in REPORTS:
        load_report(name)(run, directory)
