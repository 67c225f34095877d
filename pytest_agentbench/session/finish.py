"""The end of a session that ran rollouts: exit status, redaction of logs, and reports.

Each step is independent: logs are redacted even if other steps fail, and a report that fails does not prevent the others.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest

from pytest_agentbench.gate.exit_status import (
    CANNOT_MEASURE,
    CANNOT_TELL,
    EXITS,
    FAILED,
    INTERRUPTED,
    OK,
    SessionEnd,
    deciding,
    exit_status,
    verdict,
    with_shutdown_errors,
)
from pytest_agentbench.lib.foreign import one_line
from pytest_agentbench.lib.redact import scrub
from pytest_agentbench.records.rollout import scenario_thresholds
from pytest_agentbench.reports import PAGE, REPORTS, ci, junit, load_report, page
from pytest_agentbench.reports.ci import commands
from pytest_agentbench.reports.page.data import PackedRollouts
from pytest_agentbench.runs.directory import discard, point_latest
from pytest_agentbench.runs.run_file import FILE, Run, redacted, write_run
from pytest_agentbench.session.open_session import OpenSession
from pytest_agentbench.session.pytest_reports import Outcomes
from pytest_agentbench.session.recorder import remember_durations
from pytest_agentbench.session.results import SessionFindings
from pytest_agentbench.session.summary import conclude
from pytest_agentbench.stats.decisions import FAIL

# The report that is appended to a file of the whole CI job, so it is written only once.
APPENDED = "summary"


class Finish:
    """Decides the exit status of a session, and writes run.json and the reports.

    Only one other class sets an exit status: `Mistakes` (session/controller.py), if no rollout was planned.

    1. `end` is called in pytest_sessionfinish. It computes `run` from the journal, or discards the run directory of an empty session.
    2. `close` is called as the last step of pytest, even if that has failed. It redacts the logs and writes run.json and the reports.

    Each failed step becomes a sentence in `opened.losses` and prevents exit status 0.
    """

    def __init__(self, opened: OpenSession, tests: Outcomes, session: pytest.Session | None) -> None:
        """`session` is pytest's session, or None if pytest failed before the end of the tests."""
        self.run: Run | None = None  # The run, set by `end` unless the session was empty
        self.lines: list[str] = []  # Lines about single rollouts for the terminal (-v)
        self.discarded = False  # Whether the session was empty and its run directory was removed
        self._opened, self._tests, self._session = opened, tests, session
        self._packed: PackedRollouts | None = None  # Rollouts for report.html; None: the page reads the journal
        self._ci = ci.system(opened.setup.settings.ci, os.environ)

    def end(self, gather: Callable[[], SessionFindings]) -> None:
        """Computes the run and decides the exit status. The run directory of an empty session is removed.

        `gather` ends the services and returns what was measured.
        """
        session = self._session
        assert session is not None
        with self._opened.losses.step("the run cannot be summarised"):
            findings = gather()
            if self._has_results():
                self._sum_up(session, findings)
            else:
                discard(self._opened.directory)
                self.discarded = True
        self._count_losses(session)

    def close(self, error: BaseException | None) -> None:
        """Redacts the logs, writes the reports, and prints the steps that failed. `error` is the exception that ends pytest, if any."""
        losses, session = self._opened.losses, self._session
        if session is None:  # pytest failed before the end of the tests.
            with losses.step("services did not stop cleanly"):
                self._opened.services.finish()
        with losses.step("logs may still contain secrets (`agentbench scrub` tries again)"):
            self._scrub()
        if session is not None:
            if isinstance(error, Exception) and not isinstance(error, pytest.UsageError):  # pytest prints a UsageError itself.
                losses.add("a plugin failed when the session ended", error)
                session.exitstatus = session.exitstatus or FAILED  # Python's exit status for an uncaught exception
            with losses.step("the rules of the gate are not in the JUnit file"):
                self._add_rules(session)
            if self.run is not None:
                self._publish(session)
            self._count_losses(session)
        nodes = self._opened.services.nodes
        stop_notes = (self._opened.setup.backend.stop_note, nodes.launch.stop_note if nodes and nodes.launch else "")
        sentences = (*filter(None, stop_notes), *losses.sentences, *self._verdict_note())
        say(self._opened.setup.config, [f"agentbench: {sentence}" for sentence in sentences])

    def _verdict_note(self) -> Iterator[str]:
        """Yields verdict and reason if no test failed but the exit status is not 0, because pytest's own last line looks like success."""
        run, session = self.run, self._session
        if run is None or session is None or session.testsfailed or run.exit_status not in (FAILED, CANNOT_MEASURE, CANNOT_TELL):
            return
        gate = deciding(run)
        why = "gate FAIL, though no test failed" if gate and gate.verdict == FAIL else EXITS[run.exit_status].text
        yield f"{run.verdict}, exit status {run.exit_status}: {why}"

    def _has_results(self) -> bool:
        """Returns whether to keep the run directory: the run was resumed or failed, has rollouts, or a stack left logs."""
        recorder, services, backend = self._opened.recorder, self._opened.services, self._opened.setup.backend
        logs = backend.waits and services.boot_began  # Whether a stack was booted, which leaves logs
        resumed = self._opened.number > 1
        return bool(resumed or recorder.planned_keys or recorder.in_journal or recorder.selected or services.failure or logs)

    def _sum_up(self, session: pytest.Session, findings: SessionFindings) -> None:
        run = conclude(self._opened, self._tests, findings, interrupted=session.exitstatus == INTERRUPTED)
        self.run = redacted(run, self._opened.hooks.redacted)
        self.lines, self._packed = findings.shown.lines, findings.shown.page
        session.exitstatus = self._status(session, self.run)

    def _status(self, session: pytest.Session, run: Run) -> int:
        services, tests = self._opened.services, self._tests
        # xdist reports a stop that a worker requested as INTERRUPTED.
        stopped_early = tests.cut_short and session.exitstatus == INTERRUPTED
        ending = SessionEnd(
            FAILED if stopped_early else int(session.exitstatus),
            only_unmeasured=session.testsfailed == tests.unmeasured + tests.wrong_files,
            mistake=tests.wrong_files > 0,
            failure=bool((services.failure and run.suites) or run.unknown_suites) and not services.missing,
            gate=deciding(run),
        )
        return exit_status(ending, self._opened.setup.settings.inconclusive)

    def _count_losses(self, session: pytest.Session) -> None:
        """Puts the steps that failed so far into `run`. Updates the exit status of `run` and session, and the verdict of `run`."""
        losses = self._opened.losses.sentences
        if losses:
            session.exitstatus = with_shutdown_errors(int(session.exitstatus))
        if self.run is not None:
            status = int(session.exitstatus)
            suites = self.run.suites
            thresholds = any(scenario_thresholds(suites[group].thresholds) for group in self._tests.applied if group in suites)
            word = verdict(status, deciding(self.run), missing=self._opened.services.missing, thresholds=thresholds)
            self.run = replace(self.run, losses=tuple(losses), exit_status=status, verdict=word)

    def _add_rules(self, session: pytest.Session) -> None:
        """Adds a test case for each rule of the gate to pytest's JUnit file, which is complete by now. A device stays as it is."""
        setup = self._opened.setup
        config, gate = setup.config, setup.gate
        path = getattr(config.option, "xmlpath", None)
        file = Path(config.invocation_params.dir, os.path.expandvars(path)).expanduser() if path else None
        if gate is None or file is None or (file.exists() and not file.is_file()):
            return
        if self.run is not None and self.run.gate is not None:
            cases = junit.cases_of(self.run, self.run.gate, tolerated=setup.settings.inconclusive != "fail")
        else:
            rules = [(each.group, each.rule.text) for each in gate.rules if self.run is None or each.group in self.run.suites]
            cases = junit.unchecked_cases(rules, red=session.exitstatus not in (OK, FAILED))
        style = junit.JUnitStyle(config.option.junitprefix or "", config.getini("junit_family") in ("xunit1", "legacy"))
        junit.add_suite(file, cases, style, datetime.now().astimezone().isoformat(timespec="seconds"), platform.node())

    def _current_run(self, session: pytest.Session) -> Run:
        """Returns the run with the steps that have failed so far, and the exit status that follows from them."""
        self._count_losses(session)
        assert self.run is not None
        return self.run

    def _scrub(self) -> None:
        directory = self._opened.directory
        for log, error in scrub(directory, self._opened.redactor).failed.items():
            self._opened.losses.add(f"{log.relative_to(directory)} may still contain secrets (`agentbench scrub` tries again)", error)

    def _publish(self, session: pytest.Session) -> None:
        """Writes run.json and all reports. If a later step fails, the files are written again, because they contain the exit status."""
        directory, losses, settings = self._opened.directory, self._opened.losses, self._opened.setup.settings
        before = list(losses.sentences)
        self._write_files(session)
        with losses.step("the durations of rollouts were not saved"):
            remember_durations(settings.reports_directory, settings.backend, self._opened.recorder.durations)
        with losses.step("reports/latest still points to an earlier run"):
            point_latest(directory)
        self._opened.hooks.report(self._current_run(session), directory, losses)
        run = self._current_run(session)
        if APPENDED in ci.WRITTEN[self._ci]:
            with losses.step(f"the report {APPENDED} is not written"):
                load_report(APPENDED, ci.REPORTS)(run, directory)
        if self._ci == "github":
            with losses.step("annotations are not printed"):
                annotate(self._opened.setup.config, run)
        if losses.sentences != before:
            self._write_files(session)

    def _write_files(self, session: pytest.Session) -> None:
        """Writes the reports and then run.json, which names the reports that failed."""
        directory, losses = self._opened.directory, self._opened.losses
        run = self._current_run(session)
        for name, known in {**dict.fromkeys(REPORTS, REPORTS), **dict.fromkeys(ci.WRITTEN[self._ci], ci.REPORTS)}.items():
            if name != APPENDED:
                with losses.step(f"the report {name} is not written"):
                    write = partial(page.write, packed=self._packed) if name == PAGE else load_report(name, known)
                    write(run, directory)
        run = self._current_run(session)
        with losses.step(f"{FILE} is not written"):
            write_run(run, directory)


def annotate(config: pytest.Config, run: Run) -> None:
    """Prints the annotations of a run as workflow commands, which GitHub reads from the output of a CI step."""
    if terminal := config.pluginmanager.get_plugin("terminalreporter"):
        for line in commands(run, Path(os.environ.get("GITHUB_WORKSPACE") or config.rootpath)):
            terminal.write_line(line)


def say(config: pytest.Config, lines: list[str]) -> None:
    """Prints lines in red on pytest's terminal, or on stderr if there is no terminal reporter."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and lines:
        terminal.write_line("")  # Ends pytest's line of progress if pytest was interrupted within it.
    for line in map(one_line, lines):
        if terminal is None:
            print(line, file=sys.stderr)  # noqa: T201 - no terminal reporter exists
        else:
            terminal.write_line(line, red=True)
