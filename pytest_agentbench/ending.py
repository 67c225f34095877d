"""The end of a session that ran: run.json, reports, and the exit status."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_agentbench.conclusion import NOTHING_MEASURED, Gathered, conclude
from pytest_agentbench.directory import discard, point_latest
from pytest_agentbench.gating import exit_status
from pytest_agentbench.ledger import remember_durations
from pytest_agentbench.records import Json
from pytest_agentbench.reports import ci, write_reports
from pytest_agentbench.reports.annotations import commands
from pytest_agentbench.run import write_run
from pytest_agentbench.scrub import scrub

if TYPE_CHECKING:
    from pytest_agentbench.controller import Controller


def end(controller: Controller, session: pytest.Session, gathered: Gathered) -> None:
    """Writes what the session found; one that came to nothing leaves nothing behind."""
    ledger, services, directory = controller.ledger, controller.services, controller.directory
    assert ledger is not None and services is not None and directory is not None
    if not _left_something(controller):
        discard(directory)
        return
    interrupted = session.exitstatus == pytest.ExitCode.INTERRUPTED
    text = json.dumps(conclude(controller, gathered, interrupted=interrupted))
    run: Json = json.loads(controller.redacted(text))  # the command and the end of a log may hold secrets
    controller.run = run
    session.exitstatus = _status(controller, session, run)
    run["exit_status"] = int(session.exitstatus)
    try:
        write_run(run, directory)
        write_reports(run, directory)
        ci.write_reports(ci.system(controller.settings.ci, os.environ), run, directory)
        remember_durations(controller.settings.reports, controller.settings.backend, ledger.durations)
        point_latest(directory)
    except OSError as error:  # the disk is full, say: what was measured is in the journal and on the screen
        controller.unwritten = f"the reports cannot be written: {error}"
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
    finally:
        scrub(directory, controller.redactor)
    controller.config.hook.pytest_agentbench_report(run=run, directory=directory)


def _left_something(controller: Controller) -> bool:
    ledger, services, backend = controller.ledger, controller.services, controller.backend
    assert ledger is not None and services is not None
    logs = backend is not None and backend.waits and services.boot_began  # of a stack that was booted
    went_on = controller.session > 1
    return bool(went_on or ledger.planned_keys or ledger.in_journal or ledger.selected or services.failure or logs)


def _status(controller: Controller, session: pytest.Session, run: Json) -> int:
    """The exit status: pytest's, unless limits, the backend or the gate say otherwise; an interrupted session stays one."""
    ended = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
    if session.exitstatus not in ended:
        return session.exitstatus
    if run["gate"] is None or not run["gate"]["decides"]:
        return pytest.ExitCode.TESTS_FAILED if run["verdict"] == "FAIL" else session.exitstatus
    return exit_status(
        session.exitstatus,
        run["gate"],
        failure=bool(run["backend"]["failure"]),
        limits_failed=any(limit["failed"] and limit["name"] != NOTHING_MEASURED for limit in run["limits"]),
        only_infra=session.testsfailed == controller.unmeasured_tests,
        inconclusive=controller.settings.inconclusive,
    )


def annotate(controller: Controller, terminal: Any) -> None:
    """GitHub reads annotations from what a step prints."""
    assert controller.run is not None
    if ci.system(controller.settings.ci, os.environ) == "github":
        for line in commands(controller.run, Path(os.environ.get("GITHUB_WORKSPACE") or controller.config.rootpath)):
            terminal.write_line(line)
