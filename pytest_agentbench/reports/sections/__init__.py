"""The sections of a run's report, in their order. Each is a function that takes a view of the run and returns a section, or None.

To add a section, create a file here with a function `section`, and add a line to SECTIONS. A plugin adds one with the entry-point group
`pytest_agentbench.sections`. A section is shown on the terminal, in report.md, report.html and comments, as the levels of its blocks say.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pytest_agentbench.reports import phrases
from pytest_agentbench.reports.document import Document, Fact, Level, Note, Section, say
from pytest_agentbench.reports.headline import headline
from pytest_agentbench.reports.sections import (
    arms,
    engines,
    files,
    first_look,
    gate,
    hints,
    kv_cache,
    nodes,
    origin,
    outcome,
    server,
    serving,
    setup,
    suites,
)
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
    engines.section,
    kv_cache.section,
    hints.section,
    nodes.section,
    setup.section,
    files.section,
)


def document(view: RunView) -> Document:
    """Returns the report of a run."""
    run = view.run
    verdict = Fact("verdict", say(headline, run), tone(run.verdict), level=Level.HEADLINE)
    return Document.of(f"Run {run.id}", (each(view) for each in (*SECTIONS, *_of_plugins())), verdict)


def _of_plugins() -> Iterator[SectionFunction]:
    from importlib.metadata import entry_points

    yield from (functools.partial(_section_of, each) for each in entry_points(group=ENTRY_POINTS))


def _section_of(entry: EntryPoint, view: RunView) -> Section | None:
    """Returns the section of a plugin. If the plugin fails, the section contains its error, and the report is still written."""
    try:
        section: Section | None = entry.load()(view)
        for each in section.findings() if section else ():
            each.words  # noqa: B018 - If a phrase of the plugin fails, it must fail here and not in a renderer.
    except Exception as error:
        return Section(entry.name, (Note(say(phrases.section_failure, entry.value, error), "bad"),))
    return section
