"""What pytest's header says of a session, and what became of it where no rollout was asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_agentbench.runs.journal import first_of
from pytest_agentbench.session.setup import Setup
from pytest_agentbench.session.worker_count import Workers

if TYPE_CHECKING:
    from pytest_agentbench.session.opened import OpenSession


def header(setup: Setup, opened: OpenSession | None, workers: Workers, left_out: Sequence[str]) -> Iterator[str]:
    """Yields the lines of the header; `left_out` says which arms cannot run."""
    for line in (*_lines(setup, opened, workers), *left_out):
        yield f"agentbench: {line}"


def _lines(setup: Setup, opened: OpenSession | None, workers: Workers) -> Iterator[str]:
    backend, settings = setup.backend, setup.settings
    suites = ", ".join(f"{name} ({len(suite.scenarios)} scenarios)" for name, suite in setup.suites.items())
    yield f"backend {backend.name}{f' - {backend.note}' if backend.note else ''}"
    yield f"suites {suites or 'none that can be loaded'}"
    for suite in setup.suites.values():
        yield from suite.notes
    if opened is not None:
        yield f"{setup.concurrency} rollouts in flight, run directory {setup.shown(opened.directory)}"
        yield from opened.redactor.advice
    if workers.sentence:
        yield workers.sentence
    if setup.gate is not None:
        yield from setup.gate.warnings(setup.discovered.compiled, settings.limit, settings.rounds)
    if opened is not None and opened.number > 1:
        yield from _earlier(opened)


def _earlier(opened: OpenSession) -> Iterator[str]:
    """On what earlier sessions of the run left."""
    stored, index = opened.ledger.stored, opened.ledger.journal.index
    cut = f"; a record of {index.torn:,} bytes was torn by a kill, and is cut off" if index.torn else ""
    kept = f"{len(stored.kept)} rollouts are kept, {len(stored.again)} failed and run again when a test wants them"
    yield f"session {opened.number} of this run: {kept}{cut}"
    yield from first_of(index.damaged)


def nothing_selected(setup: Setup, directory: Path) -> Iterator[str]:
    """That the run directory of the header was not kept, unless -q left the header out, and the words of -m that mean nothing."""
    if setup.config.get_verbosity() >= 0:
        yield f"agentbench: no rollout was asked for, so there is no run directory {setup.shown(directory)}"
    known = ", ".join(sorted(name for name, _ in setup.discovered.markers))
    for word in unknown_marks(setup.config.getoption("markexpr", ""), setup.config.getini("markers")):
        yield f"agentbench: -m: {word!r} is no suite of this session and no registered marker; suites: {known}"


def unknown_marks(expression: str, registered: Sequence[str]) -> list[str]:
    """The words of an expression of -m that are no name of a marker; `registered` are the lines of markers, `shop: tests of ...`."""
    names = {"and", "or", "not", *(line.partition(":")[0].partition("(")[0].strip() for line in registered)}
    bare = re.sub(r"\([^()]*=[^()]*\)", "", expression)  # without what a marker is called with
    return [word for word in dict.fromkeys(re.findall(r"[^\s()]+", bare)) if word not in names]
