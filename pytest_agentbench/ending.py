"""The end of a session that ran: its exit status, the verdict that follows from it, run.json and reports."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_agentbench.conclusion import Gathered, conclude
from pytest_agentbench.directory import discard, point_latest
from pytest_agentbench.exits import FAILED, INTERRUPTED, Ending, deciding, exit_status, verdict
from pytest_agentbench.ledger import remember_durations
from pytest_agentbench.records import Json
from pytest_agentbench.reports import ci, write_reports
from pytest_agentbench.reports.annotations import commands
from pytest_agentbench.run import write_run
from pytest_agentbench.scrub import scrub

if TYPE_CHECKING:
    from pytest_agentbench.controller import Controller


def end(controller: Controller, session: pytest.Session, gathered: Gathered) -> None:
    """Decides the exit status; a session that came to nothing leaves nothing behind."""
    assert controller.directory is not None
    if not _left_something(controller):
        discard(controller.directory)
        return
    text = json.dumps(conclude(controller, gathered, interrupted=session.exitstatus == INTERRUPTED))
    controller.run = json.loads(controller.redacted(text))  # the command and the end of a log may hold secrets
    session.exitstatus = _status(controller, session)
    _name_the_end(controller, session)


def publish(controller: Controller, session: pytest.Session) -> None:
    """Writes what the session came to, when no plugin can change its exit status any more."""
    run, directory, terminal = controller.run, controller.directory, controller.config.pluginmanager.get_plugin("terminalreporter")
    assert run is not None and directory is not None and controller.ledger is not None
    _name_the_end(controller, session)
    where = ci.system(controller.settings.ci, os.environ)
    try:
        write_run(run, directory)
        write_reports(run, directory)
        ci.write_reports(where, run, directory)
        remember_durations(controller.settings.reports, controller.settings.backend, controller.ledger.durations)
        point_latest(directory)
    except OSError as error:  # the disk is full, say: what was measured is in the journal and on the screen
        session.exitstatus = session.exitstatus or FAILED
        if terminal is not None:
            terminal.write_line(f"the reports cannot be written: {error}", red=True)
    finally:
        scrub(directory, controller.redactor)
    controller.config.hook.pytest_agentbench_report(run=run, directory=directory)
    if where == "github" and terminal is not None:
        annotate(run, Path(os.environ.get("GITHUB_WORKSPACE") or controller.config.rootpath), terminal)


def annotate(run: Json, workspace: Path, terminal: Any) -> None:
    """GitHub reads annotations from what a step prints."""
    for line in commands(run, workspace):
        terminal.write_line(line)


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
        only_unmeasured=session.testsfailed == controller.unmeasured_tests,
        failure=bool(services.failure and run["suites"]) and not services.missing,
        limits=run["limits"],
        gate=deciding(run),
    )
    return exit_status(ending, controller.settings.inconclusive)


def _name_the_end(controller: Controller, session: pytest.Session) -> None:
    """The exit status as it is now, and the word for it."""
    run, services = controller.run, controller.services
    assert run is not None and services is not None
    status = int(session.exitstatus)
    run |= {"exit_status": status, "verdict": verdict(status, deciding(run), missing=services.missing)}
