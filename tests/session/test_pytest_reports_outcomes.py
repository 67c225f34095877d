"""The controller's counts of test outcomes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.session.pytest_reports import BELOW, OVER, UNMEASURED, Outcomes


def report(outcome: Any, **marks: Any) -> pytest.TestReport:
    return pytest.TestReport("test_it", ("test_it.py", 0, "test_it"), {}, outcome, "why", "call", **marks)


def test_what_failed_is_counted() -> None:
    """Failed tests are always counted, not only under --maxfail, because lines in a log show their number."""
    tests = Outcomes(Path())

    for each in (report("passed"), report("failed"), report("failed", **{UNMEASURED: True}), report("skipped", **{BELOW: True})):
        tests.add(each)

    assert (2, 1, 1, False) == (tests.failed, tests.unmeasured, tests.below, tests.cut_short)


def test_the_session_is_cut_short() -> None:
    """A session is cut short after a report says that nothing more can run, whatever later reports say."""
    tests = Outcomes(Path())

    tests.add(report("failed", **{OVER: True}))
    tests.add(report("passed"))

    assert tests.cut_short
