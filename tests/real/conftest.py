"""Tests with real servers run if REAL_SERVERS is set. A table at the end shows which tests ran, and why others did not."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

HERE = Path(__file__).parent

#: Test -> outcome, seconds, and the reason if it did not run.
TABLE: dict[str, tuple[str, float, str]] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and not os.environ.get("REAL_SERVERS"):
            item.add_marker(pytest.mark.skip("NOT TESTED on real parts: make test-real"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    name = f"{item.path.stem.removeprefix('test_')}: {item.name.removeprefix('test_')}"
    outcome, seconds, why = TABLE.get(name, ("passed", 0.0, ""))
    if not report.passed:
        outcome, why = report.outcome, report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
    TABLE[name] = (outcome, seconds + report.duration, why)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not os.environ.get("REAL_SERVERS"):
        return
    terminalreporter.write_sep("=", "real parts")
    for name, (outcome, seconds, why) in TABLE.items():
        terminalreporter.write_line(f"{outcome:8} {seconds:6.1f} s  {name}  {why.removeprefix('Skipped: ')}".rstrip())
