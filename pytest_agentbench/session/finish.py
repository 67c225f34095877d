"""The end of a session that ran, step by step: secrets leave the logs, whatever else fails, and each report fails alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from pytest_agentbench.gate.exit_status import (
    CANNOT_MEASURE,
    CANNOT_TELL,
    EXITS,
    FAILED,
    INTERRUPTED,
    SessionEnd,
    deciding,
    exit_status,
    verdict,
    with_losses,
)
from pytest_agentbench.gate.rules import scenario_thresholds
from pytest_agentbench.lib.foreign import one_line
from pytest_agentbench.lib.redact import scrub
from pytest_agentbench.reports import PAGE, REPORTS, ci, load_report, page
from pytest_agentbench.reports.ci import commands
from pytest_agentbench.reports.page.data import PackedRollouts
from pytest_agentbench.runs.directory import discard, point_latest
from pytest_agentbench.runs.run_file import FILE, Run, redacted, write_run
from pytest_agentbench.session.open_session import OpenSession
from pytest_agentbench.session.pytest_reports import Outcomes
from pytest_agentbench.session.recorder import remember_durations
from pytest_agentbench.session.summary import SessionFindings, conclude
from pytest_agentbench.stats.decisions import FAIL

APPENDED = "summary"  # the report that is added to what other steps of a job have written, so it is written once


class Finish:
    """What a session comes to: its run, and pytest's exit status as far as it is ours. Nobody else changes them."""

    def __init__(self, opened: OpenSession, tests: Outcomes, session: pytest.Session | None) -> None:
        """`session` is pytest's, when its tests are over; None where it never came to that."""
        self.run: Run | None = None  # once the session is summed up, and where it came to something
        self.lines: list[str] = []  # what the terminal shows of single rollouts
        self.discarded = False  # whether the session came to nothing, and its run directory is gone
        self._opened, self._tests, self._session = opened, tests, session
        self._packed: PackedRollouts | None = None  # the rollouts of the page; None: it reads the journal
        self._ci = ci.system(opened.setup.settings.ci, os.environ)

    def end(self, gather: Callable[[], SessionFindings]) -> None:
        """Decides the exit status by what was measured, which `gather` gives; a session that came to nothing leaves nothing behind."""
        session = self._session
        assert session is not None
        with self._opened.losses.step("the run cannot be summed up"):
            findings = gather()
            if self._has_results():
                self._sum_up(session, findings)
            else:
                discard(self._opened.directory)
                self.discarded = True
        self._count_losses(session)

    def close(self, error: BaseException | None) -> None:
        """The last that happens in a session: scrubs the logs, writes the reports, names what failed. `error`: what pytest ends with."""
        losses, session = self._opened.losses, self._session
        if session is None:  # pytest never came to its end
            with losses.step("services did not end in order"):
                self._opened.services.finish()
        with losses.step("logs may still hold secrets"):
            self._scrub()
        if session is not None:
            if isinstance(error, Exception) and not isinstance(error, pytest.UsageError):  # which pytest says itself
                losses.add("a plugin failed when the session ended", error)
                session.exitstatus = session.exitstatus or FAILED  # as Python ends where nobody catches it
            if self.run is not None:
                self._publish(session)
            self._count_losses(session)
        stop_note = self._opened.setup.backend.stop_note
        sentences = (*filter(None, [stop_note]), *losses.sentences, *self._verdict_note())
        say(self._opened.setup.config, [f"agentbench: {sentence}" for sentence in sentences])

    def _verdict_note(self) -> Iterator[str]:
        """The verdict, where pytest's own last line has only tests that passed, and the exit status is none of a success."""
        run, session = self.run, self._session
        if run is None or session is None or session.testsfailed or run.exit_status not in (FAILED, CANNOT_MEASURE, CANNOT_TELL):
            return
        gate = deciding(run)
        why = "gate FAIL, though no test failed" if gate and gate.verdict == FAIL else EXITS[run.exit_status].text
        yield f"{run.verdict}, exit status {run.exit_status}: {why}"

    def _has_results(self) -> bool:
        recorder, services, backend = self._opened.recorder, self._opened.services, self._opened.setup.backend
        logs = backend.waits and services.boot_began  # of a stack that was booted
        resumed = self._opened.number > 1
        return bool(resumed or recorder.planned_keys or recorder.in_journal or recorder.selected or services.failure or logs)

    def _sum_up(self, session: pytest.Session, findings: SessionFindings) -> None:
        run = conclude(self._opened, self._tests, findings, interrupted=session.exitstatus == INTERRUPTED)
        self.run = redacted(run, self._opened.hooks.redacted)
        self.lines, self._packed = findings.shown.lines, findings.shown.page
        session.exitstatus = self._status(session, self.run)

    def _status(self, session: pytest.Session, run: Run) -> int:
        services, tests = self._opened.services, self._tests
        stopped_early = tests.cut_short and session.exitstatus == INTERRUPTED  # as xdist calls the end that a worker asks for
        ending = SessionEnd(
            FAILED if stopped_early else int(session.exitstatus),
            only_unmeasured=session.testsfailed == tests.unmeasured + tests.wrong_files,
            mistake=tests.wrong_files > 0,
            failure=bool((services.failure and run.suites) or run.unknown_suites) and not services.missing,
            gate=deciding(run),
        )
        return exit_status(ending, self._opened.setup.settings.inconclusive)

    def _count_losses(self, session: pytest.Session) -> None:
        """The exit status as it is now, and the word for it: what failed up to here keeps it from being green."""
        losses = self._opened.losses.sentences
        if losses:
            session.exitstatus = with_losses(int(session.exitstatus))
        if self.run is not None:
            status = int(session.exitstatus)
            suites = self.run.suites
            thresholds = any(scenario_thresholds(suites[group].thresholds) for group in self._tests.applied if group in suites)
            word = verdict(status, deciding(self.run), missing=self._opened.services.missing, thresholds=thresholds)
            self.run = replace(self.run, losses=tuple(losses), exit_status=status, verdict=word)

    def _current_run(self, session: pytest.Session) -> Run:
        """The run with what has failed up to here, and the exit status that follows from it."""
        self._count_losses(session)
        assert self.run is not None
        return self.run

    def _scrub(self) -> None:
        directory = self._opened.directory
        for log, error in scrub(directory, self._opened.redactor).failed.items():
            self._opened.losses.add(f"{log.relative_to(directory)} may still hold secrets (`agentbench scrub` tries again)", error)

    def _publish(self, session: pytest.Session) -> None:
        """Writes what the session came to. Where a later step fails, the files are written again, for they say how the session ended."""
        directory, losses, settings = self._opened.directory, self._opened.losses, self._opened.setup.settings
        before = list(losses.sentences)
        self._write_files(session)
        with losses.step("durations of rollouts are not remembered"):
            remember_durations(settings.reports_directory, settings.backend, self._opened.recorder.durations)
        with losses.step("reports/latest leads to an earlier run"):
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
        """run.json and the reports, run.json last: it has what became of the others."""
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
    """GitHub reads annotations from what a step prints."""
    if terminal := config.pluginmanager.get_plugin("terminalreporter"):
        for line in commands(run, Path(os.environ.get("GITHUB_WORKSPACE") or config.rootpath)):
            terminal.write_line(line)


def say(config: pytest.Config, lines: list[str]) -> None:
    """On the terminal, or where there is none, on stderr."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and lines:
        terminal.write_line("")  # ends the line of progress where pytest itself did not come to that
    for line in map(one_line, lines):
        if terminal is None:
            print(line, file=sys.stderr)  # noqa: T201 - somebody has to hear of it
        else:
            terminal.write_line(line, red=True)
