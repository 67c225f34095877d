"""One cause, one message: of the tests that have nothing to judge for the same reason, the first one shows all of it."""

from __future__ import annotations

import pytest

from pytest_agentbench.lib.error_texts import cause_of
from pytest_agentbench.reports.failure_section import brief
from pytest_agentbench.session.marks import UNMEASURED


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
