"""Pytest's reports on tests: what a worker says in them, and what the controller counts, shortens and escapes."""

from __future__ import annotations

import os
import secrets
from collections import Counter, defaultdict
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.lib.error_texts import cause_of
from pytest_agentbench.lib.foreign import block, one_line
from pytest_agentbench.reports.failure_section import brief

if TYPE_CHECKING:
    from pytest_agentbench.runs.run_file import Failure, OutcomeCounts


BELOW = "agentbench_below"  # a threshold, where a gate decides
QUARANTINED = "agentbench_quarantined"  # below a threshold too, of a scenario in quarantine
IN_QUARANTINE = "agentbench_in_quarantine"  # every test of such a scenario, whatever came of it: [group, scenario]
APPLIED = "agentbench_applied"  # a test that reads a rollout and thresholds, and has judged it: the group of its rollout
UNMEASURED = "agentbench_unmeasured"  # nothing to judge: [what became of it, cause]
OVER = "agentbench_over"  # no test of the session after this one can have anything to judge


KEPT = 200  # failures that are told one by one
WIDTH = 1000  # characters of a failure's message


class Outcomes:
    """Counts test reports, in the controller."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.wrong_files = 0  # that were not collected, for their suite cannot be used
        self.failed = 0  # tests, errors included
        self.unmeasured = 0  # of them, those that had nothing to judge
        self.below = 0  # tests below a threshold where the gate decides
        self.applied: set[str] = set()  # groups of which a test that reads thresholds has judged a rollout
        self.cut_short = False  # whether the session ends because nothing more can run
        self._counts = {"passed": 0, "failed": 0, "errors": 0, "skipped": 0}
        self._failures: list[Failure] = []
        self._quarantined: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)

    def add(self, report: pytest.TestReport) -> None:
        self.failed += report.failed
        self.unmeasured += hasattr(report, UNMEASURED)
        self.below += hasattr(report, BELOW)
        if hasattr(report, APPLIED):
            self.applied.add(getattr(report, APPLIED))
        self.cut_short = self.cut_short or hasattr(report, OVER)
        if where := getattr(report, IN_QUARANTINE, None):
            group, scenario = where
            self._quarantined[group, scenario].update(tests=1, passed=int(report.passed))
        if report.failed:
            outcome = "failed" if report.when == "call" else "error"
            self._counts["failed" if outcome == "failed" else "errors"] += 1
            if len(self._failures) < KEPT:
                self._failures.append(self._failure(report, outcome))
        elif report.skipped:
            self._counts["skipped"] += 1
        elif report.when == "call":
            self._counts["passed"] += 1

    def summary(self) -> OutcomeCounts:
        from pytest_agentbench.runs.run_file import OutcomeCounts

        return OutcomeCounts(**self._counts, failures=tuple(self._failures))

    def quarantined(self, group: str) -> Mapping[str, Mapping[str, int]]:
        """Quarantined scenario of a suite under one variant -> `tests` that read its rollouts, and `passed` ones."""
        return {scenario: counts for (known, scenario), counts in self._quarantined.items() if known == group}

    def _failure(self, report: pytest.TestReport, outcome: str) -> Failure:
        from pytest_agentbench.runs.run_file import Failure

        file, line, _ = report.location
        return Failure(
            id=report.nodeid,
            file=str(self._root / file),
            line=(line or 0) + 1,
            outcome=outcome,
            message=beginning(message(report), WIDTH),
            properties={str(name): value for name, value in report.user_properties},
        )


def message(report: pytest.TestReport) -> str:
    """What was wrong, without the traceback."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(report.longrepr if crash is None else crash.message)


class Causes:
    """What was shown in this session, in the controller: with xdist the only process that sees all reports."""

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}  # cause -> the first test with it

    def shorten(self, report: pytest.TestReport) -> None:
        """Leaves a line of the report of a test whose cause another test has shown."""
        if not hasattr(report, UNMEASURED):
            return
        outcome, cause = getattr(report, UNMEASURED)
        first = self._shown.setdefault(cause_of(cause), report.nodeid)
        if first != report.nodeid:
            report.longrepr = f"{outcome}: the same as {first.rpartition('::')[2]}: {brief(cause)}"
            report.sections = []

    def summarize(self, report: pytest.TestReport) -> None:
        """Leaves a line of a cause for pytest's short summary, which in CI repeats all of it; the section of the failure has the whole."""
        crash = getattr(report.longrepr, "reprcrash", None)
        if hasattr(report, UNMEASURED) and crash is not None:
            crash.message = brief(crash.message)


def mark_crash(report: pytest.TestReport) -> None:
    """Makes what xdist reports of a worker that died an ERROR: nothing was judged."""
    report.longrepr = f"{report.longrepr}: nothing was judged; no rollout is lost with it, and --agentbench-resume judges what there is"
    report.when = "setup"
    setattr(report, UNMEASURED, ["", report.longrepr])


def escape_report(report: pytest.TestReport | pytest.CollectReport, *, colours: bool) -> None:
    """Escapes what a report shows: why it failed, or was skipped or expected to fail, and its sections."""
    skipped = report.longrepr if isinstance(report.longrepr, tuple) else None
    report.longrepr = (*skipped[:2], _fold(skipped[2])) if skipped else _escape(report.longrepr, colours)
    report.sections = [(block(title), block(text, colours=colours)) for title, text in report.sections]
    if why := getattr(report, "wasxfail", ""):
        report.wasxfail = _fold(why)  # type: ignore[union-attr]  # pytest puts it there


def _fold(reason: str) -> str:
    """A reason, which pytest breaks into lines of its own, perhaps within a word."""
    return one_line(reason).replace("::", ":\\:")


def _escape(value: Any, colours: bool) -> Any:
    """The same with every text in it escaped: pytest's tree of tracebacks, or a text."""
    if isinstance(value, str):
        return block(value, colours=colours)
    if isinstance(value, list | tuple):
        return type(value)([_escape(each, colours) for each in value])
    if hasattr(value, "toterminal"):
        for name, each in vars(value).items():
            setattr(value, name, _escape(each, colours))
    return value


class WorkflowCommands:
    """A pytest plugin: GitHub takes no commands from the sections of failures and from ours, whatever stands in them."""

    def __init__(self) -> None:
        self._token = ""  # that makes GitHub listen again; nobody else can know it

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> Generator[None]:
        self.stop(terminalreporter)
        try:
            return (yield)
        finally:
            self.resume(terminalreporter)

    def stop(self, terminal: Any) -> None:
        if os.environ.get("GITHUB_ACTIONS") == "true":
            self._token = secrets.token_hex(16)
            terminal.ensure_newline()
            terminal.write_line(f"::stop-commands::{self._token}")

    def resume(self, terminal: Any) -> None:
        """Before commands of our own, and at the end."""
        if self._token:
            terminal.ensure_newline()
            terminal.write_line(f"::{self._token}::")
            self._token = ""
