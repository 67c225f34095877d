"""Pytest's test reports: attributes that workers add, and how the controller counts, shortens and escapes reports.

The constants below are names of attributes of a report.
"""

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


BELOW = "agentbench_below"  # True: a score is below its threshold, and the gate decides
QUARANTINED = "agentbench_quarantined"  # True: a score is below its threshold, and the scenario is in quarantine
IN_QUARANTINE = "agentbench_in_quarantine"  # on every test of a quarantined scenario, with any outcome: [group, scenario]
APPLIED = "agentbench_applied"  # on a test that compared a rollout with thresholds: the group of its rollout
UNMEASURED = "agentbench_unmeasured"  # True: the test had nothing to judge
CAUSE = "agentbench_cause"  # on a test without a score to judge, which other tests may miss for the same reason: [outcome, cause]
JUDGED = "agentbench_judged"  # on a failed test that reads a rollout: the name of the rollout, such as `banking[banking-017]`
OVER = "agentbench_over"  # True: no later test of this session can have anything to judge


KEPT = 200  # Number of failures that run.json lists
WIDTH = 1000  # Characters kept of a failure's message


class Outcomes:
    """Counts the test reports of a session, in the controller."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.wrong_files = 0  # Files that were not collected because their suite cannot be loaded
        self.failed = 0  # Failed tests, errors included
        self.unmeasured = 0  # Failed tests that had nothing to judge
        self.below = 0  # Tests below a threshold that did not fail because the gate decides
        self.applied: set[str] = set()  # Groups with a rollout that a test compared with thresholds
        self.cut_short = False  # Whether the session ends early because nothing more can run
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
        """Returns test counts of the quarantined scenarios of a group (suite and variant): scenario id -> {`tests`: n, `passed`: n}."""
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
            rollout=getattr(report, JUDGED, ""),
        )


def message(report: pytest.TestReport) -> str:
    """Returns the message of a failed test, without the traceback."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(report.longrepr if crash is None else crash.message)


class Causes:
    """Shortens reports of tests without a score to judge, so that a cause that several tests share is printed in full only once.

    It is used in the controller, because with xdist only the controller gets all reports.
    """

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}  # cause -> the first test with it

    def shorten(self, report: pytest.TestReport) -> None:
        """Reduces the report of a test without a score to one line, if an earlier report has the same cause."""
        if not hasattr(report, CAUSE):
            return
        outcome, cause = getattr(report, CAUSE)
        first = self._shown.setdefault(cause_of(cause), report.nodeid)
        if first != report.nodeid:
            report.longrepr = f"{outcome}: the same as {first.rpartition('::')[2]}: {brief(cause)}"
            report.sections = []

    def summarize(self, report: pytest.TestReport) -> None:
        """Shortens the message of a test without a score to one line in pytest's short summary, which begins with the error.

        In CI, pytest would print the whole message there. The section about the failed test stays complete.
        """
        crash = getattr(report.longrepr, "reprcrash", None)
        if hasattr(report, CAUSE) and crash is not None:
            crash.message = brief(crash.message if hasattr(report, UNMEASURED) else getattr(report, CAUSE)[1])


def mark_crash(report: pytest.TestReport) -> None:
    """Turns xdist's report about a dead worker into an ERROR, because nothing was judged."""
    report.longrepr = f"{report.longrepr}: nothing was judged; no rollout is lost, and --agentbench-resume judges the recorded ones"
    report.when = "setup"
    setattr(report, UNMEASURED, True)
    setattr(report, CAUSE, ["", report.longrepr])


def escape_report(report: pytest.TestReport | pytest.CollectReport, *, colours: bool) -> None:
    """Escapes control characters and CI workflow commands in the texts that a test report shows: reason of its outcome, and sections."""
    skipped = report.longrepr if isinstance(report.longrepr, tuple) else None
    report.longrepr = (*skipped[:2], _fold(skipped[2])) if skipped else _escape(report.longrepr, colours)
    report.sections = [(block(title), block(text, colours=colours)) for title, text in report.sections]
    if why := getattr(report, "wasxfail", ""):
        report.wasxfail = _fold(why)  # type: ignore[union-attr]  # pytest sets this attribute


def _fold(reason: str) -> str:
    """Returns a reason on one line and without `::`, because pytest wraps it and a line could then begin with a workflow command."""
    return one_line(reason).replace("::", ":\\:")


def _escape(value: Any, colours: bool) -> Any:
    """Returns a text, or pytest's tree of tracebacks, with control characters and workflow commands in it escaped."""
    if isinstance(value, str):
        return block(value, colours=colours)
    if isinstance(value, list | tuple):
        return type(value)([_escape(each, colours) for each in value])
    if hasattr(value, "toterminal"):
        for name, each in vars(value).items():
            setattr(value, name, _escape(each, colours))
    return value


class WorkflowCommands:
    """A pytest plugin that stops GitHub from running workflow commands that occur in the terminal summary."""

    def __init__(self) -> None:
        self._token = ""  # Secret that makes GitHub accept commands again; empty if they are not stopped

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
        """Makes GitHub run workflow commands again after `stop`. Called before annotations, which are such commands, and at the end."""
        if self._token:
            terminal.ensure_newline()
            terminal.write_line(f"::{self._token}::")
            self._token = ""


def is_reporter_replaced(config: pytest.Config) -> bool:
    """Returns whether another plugin, such as pytest-rich, has replaced pytest's terminal reporter. Then no summaries are requested.

    With `-p no:terminal` there is no reporter because the user wants none.
    """
    plugins = config.pluginmanager
    return plugins.get_plugin("terminalreporter") is None and not any(map(plugins.is_blocked, ("terminal", "terminalreporter")))
