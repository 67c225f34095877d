"""The section of an imported run: which tool made the results, and where they were read."""

from __future__ import annotations

from pytest_agentbench.reports import phrases
from pytest_agentbench.reports.document import Fact, Level, Section, say
from pytest_agentbench.reports.document import section as of
from pytest_agentbench.reports.view import RunView


def section(view: RunView) -> Section | None:
    """Returns the origin of an imported run, the tool's own means, and what its results do not contain."""
    imported = view.run.imported
    if imported is None:
        return None
    first = Fact("imported", say(phrases.imported, view.run), level=Level.FIRST_PAGE)
    means = [Fact("", say(phrases.own_mean, each)) for each in imported.means]
    return of("Origin", [first, *means, *(Fact("", each) for each in imported.notes)])
