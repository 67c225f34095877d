"""comment.md: a run on one screen, for a pull or merge request. Its first line lets a workflow find the comment that it replaces."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from pytest_agentbench.reports import markdown
from pytest_agentbench.reports.ci import cut, whole_report
from pytest_agentbench.reports.document import Document, Level
from pytest_agentbench.reports.sections import document, pull_request
from pytest_agentbench.reports.sections.pull_request import pages_of
from pytest_agentbench.reports.view import RunView
from pytest_agentbench.runs.run_file import Run

LIMIT = 65_536  # GitHub's limit in characters. Here it limits bytes, because a text never has fewer bytes than characters.


def write(run: Run, directory: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """Writes comment.md. `environment` has the variables of the CI system, from which links are made."""
    path = directory / "comment.md"
    view = RunView(run, directory)
    text = cut("\n".join([marker(run), *lines(view, environment)]) + "\n", LIMIT, whole_report(run.id))
    path.write_text(text, encoding="utf-8", errors="backslashreplace")
    return path


def marker(run: Run) -> str:
    """Returns an invisible line (an HTML comment) with the names of the suites and the backend.

    A workflow replaces an earlier comment that has this line, so comments of other suites or backends stay.
    """
    what = f"{' '.join(run.suites)} on {run.backend.name}"
    return f"<!-- agentbench: {re.sub(r'[^A-Za-z0-9_. ]+', '-', what).strip('-')} -->"


def lines(view: RunView, environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Yields the lines of comment.md after its first one, the invisible marker: five answers, and below them the folded summary."""
    whole = document(view)
    answers = pull_request.section(view.run, pages_of(view.run, view.directory, environment))
    yield from markdown.lines(Document("agentbench", whole.headline, (answers,)), Level.FULL, depth=2)
    yield from ("", "<details><summary>Details</summary>")
    yield from [*markdown.lines(whole, Level.SUMMARY, depth=2)][1:]
    yield from ("", "</details>")
