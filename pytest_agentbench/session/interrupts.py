"""Handling of Ctrl-C and SIGTERM: the first signal ends the tests, and each further one only shortens the wait for the reports."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest

from pytest_agentbench.lib.threads import daemon

if TYPE_CHECKING:
    from pytest_agentbench.session.controller import Controller

Handler = Callable[[int, FrameType | None], None]


class Interrupts:
    """A pytest plugin in the controller that handles SIGINT and SIGTERM of a session that runs rollouts."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._previous_handlers: dict[signal.Signals, Any] = {}  # Handlers that were set before this plugin's

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        self._handle(signal.SIGTERM, _interrupt_session)

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        self._shorten()
        leave_out_steps_without_a_line(excinfo)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Generator[None]:
        self._shorten()
        return (yield)

    def restore(self) -> None:
        """Sets the previous signal handlers again. Called after the reports are written."""
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def _shorten(self) -> None:
        """From now on a signal does not interrupt, but makes the services end at once."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._handle(number, self._hurry)

    def _handle(self, number: signal.Signals, handler: Handler) -> None:
        """Sets a handler, unless the signal is ignored (`nohup`), the session runs no rollouts, or this is not the main thread."""
        ours = self._controller.opened is not None and threading.current_thread() is threading.main_thread()
        if ours and signal.getsignal(number) is not signal.SIG_IGN:
            before = signal.signal(number, handler)
            self._previous_handlers.setdefault(number, before)

    def _hurry(self, _number: int, _frame: FrameType | None) -> None:
        assert self._controller.opened is not None
        daemon(self._controller.opened.services.hurry, name="hurry")  # In a thread, because it takes locks

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> Generator[None]:
        """Counts recorded rollouts in pytest's last line if no test finished, because pytest would say that no tests ran."""
        result = yield  # Other plugins expect only reports in these statistics, so change them last.
        opened = self._controller.opened
        # Passed setup and teardown phases have no category.
        outcomes = [reports for category, reports in terminalreporter.stats.items() if category]
        recorded = opened.recorder.in_journal if opened is not None else 0
        if recorded and not any(outcomes):
            rollouts = f"rollout{'s' * (recorded > 1)} recorded, no test finished"
            terminalreporter._add_stats(rollouts, [None] * recorded)
        return result


def leave_out_steps_without_a_line(excinfo: pytest.ExceptionInfo[BaseException]) -> None:
    """Removes entries without a line number from a traceback, because pytest raises a TypeError for them instead of reporting.

    Python raises KeyboardInterrupt between any two instructions of a function, and some of them belong to no line.
    """
    excinfo.traceback = excinfo.traceback.filter(lambda entry: entry._rawentry.tb_lineno is not None)


def _interrupt_session(_number: int, _frame: FrameType | None) -> None:
    """Ends a session at SIGTERM as Ctrl-C does, so that everything is torn down."""
    raise KeyboardInterrupt("SIGTERM")
