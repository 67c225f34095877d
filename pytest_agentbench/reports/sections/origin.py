"""The section of a run whose answers or results come from elsewhere: from a recording, or from another tool."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_agentbench.reports import phrases
from pytest_agentbench.reports.document import Fact, Level, Section, say
from pytest_agentbench.reports.document import section as of
from pytest_agentbench.reports.view import RunView


def section(view: RunView) -> Section | None:
    """Returns how a recording was used, or the origin of an imported run, the tool's own means, and what its results do not contain."""
    return of("Origin", [*_recording(view), *_imported(view)])


def _recording(view: RunView) -> Iterator[Fact]:
    used = view.run.backend.recording
    if used is not None:
        level = Level.HEADLINE if used.missed or used.unasked else Level.FIRST_PAGE
        yield Fact("recording", say(phrases.playback, used), "bad" if used.missed else "open" if used.unasked else "", level=level)


def _imported(view: RunView) -> Iterator[Fact]:
    imported = view.run.imported
    if imported is None:
        return
    yield Fact("imported", say(phrases.imported, view.run), level=Level.FIRST_PAGE)
    yield from (Fact("", say(phrases.own_mean, each)) for each in imported.means)
    yield from (Fact("", each) for each in imported.notes)
