"""One line below pytest's dots while rollouts run: done of how many, mean score so far, tokens per second, time to go.

Only on a terminal, and only where pytest's output is captured. In a log a line comes now and then instead, and with -q none about rollouts.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO

import pytest

from pytest_agentbench.lib.foreign import one_line
from pytest_agentbench.lib.threads import daemon

if TYPE_CHECKING:
    from pytest_agentbench.session.controller import Controller
    from pytest_agentbench.session.open_session import OpenSession
    from pytest_agentbench.session.processes import Services
    from pytest_agentbench.session.recorder import RunRecorder

DRAW_INTERVAL = 0.5  # seconds between two drawings
BEAT = 30.0  # seconds between two lines in a log, at first
INITIAL_LINES = 20  # lines at that pace; from then on a line comes when a session has become so much of itself older,
LONGEST_PAUSE = 300.0  # but after so many seconds at the latest: some CI systems end a job that says nothing for ten minutes
MAKE_ROOM = "\x1bD\x1b[A"  # scroll when the cursor is on the last row, and go back up
BELOW, BACK, CLEAR_BELOW = "\x1b7\x1b[B\r\x1b[2K", "\x1b8", "\x1b[J"


def add_progress(config: pytest.Config, controller: Controller) -> None:
    """Registers the line where somebody can see it, and where no debugger needs the terminal."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    visible = reporter is not None and reporter.isatty and config.get_verbosity() >= 0
    if reporter is not None:
        config.pluginmanager.register(Notes(reporter, controller), "agentbench-notes")
        config.pluginmanager.register(StatusLines(reporter, controller), "agentbench-notices")
    if visible and config.getoption("capture") != "no" and not controller.settings.inline:
        config.pluginmanager.register(Progress(reporter, controller), "agentbench-progress")
    elif reporter is not None:
        in_log = not reporter.isatty and config.get_verbosity() >= 0
        config.pluginmanager.register(Heartbeat(reporter, controller, BEAT, rollouts=in_log), "agentbench-heartbeat")


class Notes:
    """Says what the backend, now that it has started, gives reason to doubt, behind the first test that is over."""

    def __init__(self, reporter: Any, controller: Controller) -> None:
        self._reporter, self._controller = reporter, controller
        self._shown = False

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self) -> None:
        opened = self._controller.opened
        if self._shown or opened is None or opened.services.endpoint is None:
            return
        self._shown = True
        for sentence in opened.setup.model_warnings:
            self._reporter.ensure_newline()
            self._reporter.write_line(f"agentbench: {sentence}", yellow=True)


class StatusLines:
    """What has to be said while no test is over, and perhaps none ever will be: a line each, at once."""

    def __init__(self, reporter: Any, controller: Controller) -> None:
        self._reporter, self._controller = reporter, controller
        self._thread: threading.Thread | None = None

    def pytest_runtestloop(self) -> None:
        if (opened := self._controller.opened) is not None:
            self._thread = daemon(self._say, opened.services.notices, name="notices")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        if self._thread is not None and self._controller.opened is not None:
            self._controller.opened.services.notices.put("")
            self._thread.join()

    def _say(self, notices: queue.SimpleQueue[str]) -> None:
        while sentence := notices.get():
            self._reporter.ensure_newline()
            if self._reporter._tw.width_of_current_line:  # with xdist the reporter does not know that it is within a line of dots
                self._reporter.write_line("")
            self._reporter.write_line(f"agentbench: {one_line(sentence)}", yellow=True)


class Progress:
    """Draws below the cursor; whatever pytest writes wipes it away first."""

    def __init__(self, reporter: Any, controller: Controller) -> None:
        self._writer, self._controller = reporter._tw, controller
        self._line = ProgressLine(self._writer._file)
        self._finished = threading.Event()

    def pytest_runtestloop(self) -> None:
        self._writer._file = self._line
        daemon(self._keep_drawing, name="progress")

    def pytest_enter_pdb(self) -> None:
        """The terminal is the debugger's from here on."""
        self._finished.set()
        self._line.wipe()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self._finished.set()
        self._writer._file = self._line.close()

    def _keep_drawing(self) -> None:
        while not self._finished.wait(DRAW_INTERVAL):
            if text := self._text():
                self._line.draw(one_line(text)[: self._writer.fullwidth - 1])

    def _text(self) -> str:
        return session_line(self._controller.opened, lambda recorder: status_line(recorder, time.monotonic()))


class ProgressLine:
    """Stands before the terminal's file. It draws through a descriptor of its own, for a running test may have its output captured."""

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal
        self._own = os.fdopen(os.dup(terminal.fileno()), "w", encoding=terminal.encoding, errors="replace")
        self._lock = threading.Lock()
        self._drawn = False

    def draw(self, text: str) -> None:
        with self._lock:
            if not self._own.closed:
                self._own.write(f"{MAKE_ROOM}{BELOW}{text}{BACK}")
                self._own.flush()
                self._drawn = True

    def wipe(self) -> None:
        with self._lock:
            self._wipe()

    def write(self, text: str) -> int:
        with self._lock:
            self._wipe()
            written = self._terminal.write(text)
            self._terminal.flush()  # before the next drawing
            return written

    def flush(self) -> None:
        self._terminal.flush()

    def close(self) -> TextIO:
        """Wipes the line away for good; returns the file it stood before."""
        with self._lock:
            self._wipe()
            self._own.close()
        return self._terminal

    def _wipe(self) -> None:
        if self._drawn:
            self._own.write(CLEAR_BELOW)
            self._own.flush()
            self._drawn = False


class Heartbeat:
    """Where nobody looks on, a line now and then says what a boot waits for, or how far the rollouts are: a silent log seems to hang."""

    def __init__(self, reporter: Any, controller: Controller, every: float, *, rollouts: bool) -> None:
        """`every` in seconds; `rollouts`: whether there are lines when the boot is over."""
        self._reporter, self._controller, self._every, self._rollouts = reporter, controller, every, rollouts
        self._finished = threading.Event()

    def pytest_runtestloop(self) -> None:
        daemon(self._keep_writing, name="heartbeat")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self._finished.set()

    def _keep_writing(self) -> None:
        began = time.monotonic()
        while not self._finished.wait(pause(time.monotonic() - began, self._every)):
            if text := self._text():
                self._reporter.ensure_newline()
                self._reporter.write_line(one_line(text))

    def _text(self) -> str:
        return session_line(self._controller.opened, self._rollouts_line)

    def _rollouts_line(self, recorder: RunRecorder) -> str:
        return log_line(recorder, self._controller.outcomes.failed, time.monotonic()) if self._rollouts else ""


def pause(age: float, every: float) -> float:
    """Seconds to the next line of a log, of a session of that age: a session of ten hours has a hundred lines, not a thousand."""
    return max(every, min(age / INITIAL_LINES, LONGEST_PAUSE))


def session_line(opened: OpenSession | None, rollouts_line: Callable[[RunRecorder], str]) -> str:
    """What a boot waits for, or how far the rollouts are; empty before the first and while none is planned."""
    if opened is None:
        return ""
    if opened.services.boot_status:
        return boot_line(opened.services)
    return rollouts_line(opened.recorder) if opened.recorder.planned_keys else ""


def boot_line(services: Services) -> str:
    """`agentbench boots vllm · 83 s · engine: waiting for /health · loading weights`"""
    return f"agentbench boots {services.backend.name} · {time.monotonic() - services.boot_began:.0f} s · {services.boot_status}"


def status_line(recorder: RunRecorder, now: float) -> str:
    """`agentbench 17/100 · tsq 0.612 · 840 tok/s · 12 s to go`"""
    seconds = max(now - recorder.began, 1e-9)
    parts = [f"agentbench {recorder.done}/{recorder.planned_keys}"]
    parts += [f"{name} {total / count:.3f}" for name, (total, count) in [*recorder.score_sums.items()][:1]]
    parts.append(f"{recorder.tokens / seconds:.0f} tok/s")
    if (left := expected_seconds_left(recorder, now)) is not None:
        parts.append(f"{left:.0f} s to go")
    return " · ".join(parts)


def log_line(recorder: RunRecorder, failed_tests: int, now: float) -> str:
    """`agentbench 17 of 100 rollouts done · 2 tests failed · 90 s · about 7 min to go`"""
    parts = [f"agentbench {recorder.done} of {recorder.planned_keys} rollouts done"]
    parts.append(f"{failed_tests or 'no'} test{'s' * (failed_tests != 1)} failed")
    parts.append(duration_text(now - recorder.began))
    if left := expected_seconds_left(recorder, now):
        parts.append(f"about {duration_text(left)} to go")
    return " · ".join(parts)


def expected_seconds_left(recorder: RunRecorder, now: float) -> float | None:
    """Seconds until all rollouts are done, if they go on as they did; None before the first one of this session."""
    ran = recorder.done - recorder.reused
    return (recorder.planned_keys - recorder.done) * (now - recorder.began) / ran if ran > 0 else None


def duration_text(seconds: float) -> str:
    """`90 s`, `7 min`, `2 h 05 min`."""
    minutes = round(seconds / 60)
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02} min"
