"""The sections of a run's report, in their order. Each is a function of a view of the run that returns a section, or None.

A new section is a file here with a function `section`, and a line in SECTIONS. A plugin adds one by the entry-point group
`pytest_agentbench.sections`. Whatever a section contains reaches the terminal, report.md, report.html and comments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pytest_agentbench.reports import phrases
from pytest_agentbench.reports.document import Document, Fact, Level, Note, Section, say
from pytest_agentbench.reports.sections import arms, files, first_look, gate, origin, outcome, server, serving, setup, suites
from pytest_agentbench.reports.view import RunView, tone

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS = "pytest_agentbench.sections"

SectionFunction = Callable[[RunView], Section | None]

SECTIONS: tuple[SectionFunction, ...] = (
    outcome.section,
    origin.section,
    first_look.section,
    gate.section,
    arms.section,
    suites.section,
    serving.section,
    server.section,
    setup.section,
    files.section,
)


def document(view: RunView) -> Document:
    """Returns the report of a run."""
    run = view.run
    headline = Fact("verdict", say(phrases.headline, run), tone(run.verdict), level=Level.HEADLINE)
    return Document.of(f"Run {run.id}", (each(view) for each in (*SECTIONS, *_of_plugins())), headline)


def _of_plugins() -> Iterator[SectionFunction]:
    from importlib.metadata import entry_points

    yield from (functools.partial(_section_of, each) for each in entry_points(group=ENTRY_POINTS))


def _section_of(entry: EntryPoint, view: RunView) -> Section | None:
    """Returns the section of a plugin. If the plugin fails, the section says so, and the rest of the report is written."""
    try:
        section: Section | None = entry.load()(view)
        for each in section.findings() if section else ():
            each.words  # noqa: B018 - a phrase that fails does so here, and not in a renderer
    except Exception as error:
        return Section(entry.name, (Note(say(phrases.section_failure, entry.value, error), "bad"),))
    return section
