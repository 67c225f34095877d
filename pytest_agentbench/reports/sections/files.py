"""The section of files: the command that resumes the run, and the paths of its reports and pictures."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_agentbench.plots import drawn
from pytest_agentbench.reports import phrases
from pytest_agentbench.reports.document import AnyBlock, Code, Fact, Figure, Level, Section, say
from pytest_agentbench.reports.document import section as of
from pytest_agentbench.reports.view import RunView


def section(view: RunView) -> Section | None:
    """Returns the command that resumes the run, the paths of the reports, and the pictures drawn by `agentbench plot`."""
    return of("Files", _blocks(view))


def _blocks(view: RunView) -> Iterator[AnyBlock]:
    first, full = Level.FIRST_PAGE, Level.FULL
    yield Fact("resume", Code(view.run.resume or "", "command"), "open", level=Level.HEADLINE)
    yield Fact("open", Code(f"{view.place}/report.html", "command"), level=Level.HEADLINE, until=first)
    yield Fact("", say(phrases.what_to_show, view.run, view.place), level=first, until=first)
    yield Fact("open", say(phrases.files, view.place), level=full, until=full)
    for title, file in drawn(view.directory):
        yield Figure(title, file.relative_to(view.directory).as_posix(), level=Level.VERBOSE)
