"""What pytest shows of tests: escaped where it is shown, and on GitHub between two marks that let no command through."""

from __future__ import annotations

import os
import secrets
from collections.abc import Generator
from typing import Any

import pytest

from pytest_agentbench.lib.foreign import block, one_line


def escape_report(report: pytest.TestReport | pytest.CollectReport, *, colours: bool) -> None:
    """Escapes what a report shows: why it failed, or was skipped or expected to fail, and its sections."""
    skipped = report.longrepr if isinstance(report.longrepr, tuple) else None
    report.longrepr = (*skipped[:2], _folded(skipped[2])) if skipped else _escaped(report.longrepr, colours)
    report.sections = [(block(title), block(text, colours=colours)) for title, text in report.sections]
    if why := getattr(report, "wasxfail", ""):
        report.wasxfail = _folded(why)  # type: ignore[union-attr]  # pytest puts it there


def _folded(reason: str) -> str:
    """A reason, which pytest breaks into lines of its own, perhaps within a word."""
    return one_line(reason).replace("::", ":\\:")


def _escaped(value: Any, colours: bool) -> Any:
    """The same with every text in it escaped: pytest's tree of tracebacks, or a text."""
    if isinstance(value, str):
        return block(value, colours=colours)
    if isinstance(value, list | tuple):
        return type(value)([_escaped(each, colours) for each in value])
    if hasattr(value, "toterminal"):
        for name, each in vars(value).items():
            setattr(value, name, _escaped(each, colours))
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
