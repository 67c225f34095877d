"""How the tests of a session ended, as reports tell it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.session.marks import APPLIED, BELOW, IN_QUARANTINE, OVER, UNMEASURED

if TYPE_CHECKING:
    from pytest_agentbench.runs.contents import Failure, OutcomeCounts

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
        from pytest_agentbench.runs.contents import OutcomeCounts

        return OutcomeCounts(**self._counts, failures=tuple(self._failures))

    def quarantined(self, group: str) -> Mapping[str, Mapping[str, int]]:
        """Quarantined scenario of a suite under one variant -> `tests` that read its rollouts, and `passed` ones."""
        return {scenario: counts for (known, scenario), counts in self._quarantined.items() if known == group}

    def _failure(self, report: pytest.TestReport, outcome: str) -> Failure:
        from pytest_agentbench.runs.contents import Failure

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
