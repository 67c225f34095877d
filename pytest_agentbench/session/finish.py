"""The end of a session that ran, step by step: secrets leave the logs, whatever else fails, and each report fails alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_agentbench.gate.exit_status import FAILED, INTERRUPTED, Ending, deciding, exit_status, verdict, with_losses
from pytest_agentbench.lib.foreign import one_line
from pytest_agentbench.lib.scrub import scrub
from pytest_agentbench.reports import REPORTS, ci, load_report
from pytest_agentbench.reports.annotations import commands
from pytest_agentbench.runs.contents import Run
from pytest_agentbench.runs.directory import discard, point_latest
from pytest_agentbench.runs.tally import FILE, redacted, write_run
from pytest_agentbench.session.recorder import remember_durations
from pytest_agentbench.session.summary import Gathered, conclude

if TYPE_CHECKING:
    from pytest_agentbench.session.controller import Controller

APPENDED = "summary"  # the report that is added to what other steps of a job have written, so it is written once


def end(controller: Controller, session: pytest.Session, gather: Callable[[], Gathered]) -> None:
    """Decides the exit status by what was measured, which `gather` gives; a session that came to nothing leaves nothing behind."""
    assert controller.directory is not None
    with controller.losses.step("the run cannot be summed up"):
        gathered = gather()
        if _left_something(controller):
            _sum_up(controller, session, gathered)
        else:
            discard(controller.directory)
    _count_losses(controller, session)


def _sum_up(controller: Controller, session: pytest.Session, gathered: Gathered) -> None:
    run = conclude(controller, gathered, interrupted=session.exitstatus == INTERRUPTED)
    controller.run = redacted(run, controller.redacted)
    session.exitstatus = _status(controller, session)


def close(controller: Controller, error: BaseException | None) -> None:
    """The last that happens in a session: scrubs the logs, writes the reports, names what failed. `error`: what pytest ends with."""
    losses, session = controller.losses, controller.over
    assert controller.directory is not None and controller.services is not None
    if session is None:  # pytest never came to its end
        with losses.step("services did not end in order"):
            controller.services.finish()
    with losses.step("logs may still hold secrets"):
        _scrub(controller, controller.directory)
    if session is not None:
        if isinstance(error, Exception):
            losses.add("a plugin failed when the session ended", error)
            session.exitstatus = session.exitstatus or FAILED  # as Python ends where nobody catches it
        if controller.run is not None:
            publish(controller, session)
        _count_losses(controller, session)
    _say(controller, [f"agentbench: {sentence}" for sentence in losses.sentences])


def publish(controller: Controller, session: pytest.Session) -> None:
    """Writes what the session came to. Where a later step fails, the files are written again, for they say how the session ended."""
    directory, losses = controller.directory, controller.losses
    assert directory is not None and controller.ledger is not None
    where = ci.system(controller.settings.ci, os.environ)
    before = list(losses.sentences)
    _write_files(controller, session, where)
    with losses.step("durations of rollouts are not remembered"):
        remember_durations(controller.settings.reports, controller.settings.backend, controller.ledger.durations)
    with losses.step("reports/latest leads to an earlier run"):
        point_latest(directory)
    _call_hooks(controller, _as_it_is(controller, session), directory)
    run = _as_it_is(controller, session)
    if APPENDED in ci.WRITTEN[where]:
        with losses.step(f"the report {APPENDED} is not written"):
            load_report(APPENDED, ci.REPORTS)(run, directory)
    if where == "github":
        with losses.step("annotations are not printed"):
            annotate(controller, run)
    if losses.sentences != before:
        _write_files(controller, session, where)


def annotate(controller: Controller, run: Run) -> None:
    """GitHub reads annotations from what a step prints."""
    if terminal := controller.config.pluginmanager.get_plugin("terminalreporter"):
        for line in commands(run, Path(os.environ.get("GITHUB_WORKSPACE") or controller.config.rootpath)):
            terminal.write_line(line)


def _scrub(controller: Controller, directory: Path) -> None:
    for log, error in scrub(directory, controller.redactor).failed.items():
        controller.losses.add(f"{log.relative_to(directory)} may still hold secrets (`agentbench scrub` tries again)", error)


def _write_files(controller: Controller, session: pytest.Session, where: str) -> None:
    """run.json and the reports, run.json last: it has what became of the others."""
    directory, losses = controller.directory, controller.losses
    assert directory is not None
    run = _as_it_is(controller, session)
    for name, known in {**dict.fromkeys(REPORTS, REPORTS), **dict.fromkeys(ci.WRITTEN[where], ci.REPORTS)}.items():
        if name != APPENDED:
            with losses.step(f"the report {name} is not written"):
                load_report(name, known)(run, directory)
    run = _as_it_is(controller, session)
    with losses.step(f"{FILE} is not written"):
        write_run(run, directory)


def _as_it_is(controller: Controller, session: pytest.Session) -> Run:
    """The run with what has failed up to here, and the exit status that follows from it."""
    _count_losses(controller, session)
    assert controller.run is not None
    return controller.run


def _call_hooks(controller: Controller, run: Run, directory: Path) -> None:
    """Every plugin's own report, one after the other."""
    for name, plugin in _reporters(controller.config):
        others = [other for _, other in _reporters(controller.config) if other is not plugin]
        hook = controller.config.pluginmanager.subset_hook_caller("pytest_agentbench_report", others)
        with controller.losses.step(f"the report of {name} is not written"):
            hook(run=run, directory=directory)


def _reporters(config: pytest.Config) -> Iterator[tuple[str, Any]]:
    for each in reversed(config.hook.pytest_agentbench_report.get_hookimpls()):
        yield (Path(each.plugin_name).name if each.plugin_name else "a plugin"), each.plugin


def _say(controller: Controller, lines: list[str]) -> None:
    """On the terminal, or where there is none, on stderr."""
    terminal = controller.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and lines:
        terminal.write_line("")  # ends the line of progress where pytest itself did not come to that
    for line in map(one_line, lines):
        if terminal is None:
            print(line, file=sys.stderr)  # noqa: T201 - somebody has to hear of it
        else:
            terminal.write_line(line, red=True)


def _left_something(controller: Controller) -> bool:
    ledger, services, backend = controller.ledger, controller.services, controller.backend
    assert ledger is not None and services is not None
    logs = backend is not None and backend.waits and services.boot_began  # of a stack that was booted
    went_on = controller.session > 1
    return bool(went_on or ledger.planned_keys or ledger.in_journal or ledger.selected or services.failure or logs)


def _status(controller: Controller, session: pytest.Session) -> int:
    services, run = controller.services, controller.run
    assert services is not None and run is not None
    ours = controller.cut_short and session.exitstatus == INTERRUPTED  # as xdist calls the end that a worker asks for
    ending = Ending(
        FAILED if ours else int(session.exitstatus),
        only_unmeasured=session.testsfailed == controller.unmeasured_tests + controller.outcomes.wrong_files,
        mistake=controller.outcomes.wrong_files > 0,
        failure=bool((services.failure and run.suites) or run.unknown_suites) and not services.missing,
        gate=deciding(run),
    )
    return exit_status(ending, controller.settings.inconclusive)


def _count_losses(controller: Controller, session: pytest.Session) -> None:
    """The exit status as it is now, and the word for it: what failed up to here keeps it from being green."""
    if controller.losses.sentences:
        session.exitstatus = with_losses(int(session.exitstatus))
    run, status = controller.run, int(session.exitstatus)
    if run is not None:
        assert controller.services is not None
        word = verdict(status, deciding(run), missing=controller.services.missing)
        controller.run = replace(run, losses=tuple(controller.losses.sentences), exit_status=status, verdict=word)
