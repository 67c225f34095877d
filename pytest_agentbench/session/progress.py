"""The progress line below pytest's dots while rollouts run: rollouts done and in flight, errors, mean score, tokens per second, time left.

It is drawn only on a terminal, and only if pytest captures the output of tests. A log gets a line now and then instead. With -q no
line is about rollouts.
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

DRAW_INTERVAL = 0.5  # Seconds between two drawings

# The first lines of a log come every BEAT seconds. After INITIAL_LINES of them the pause is 1/INITIAL_LINES of the session's age, but at
# most LONGEST_PAUSE seconds, because some CI systems end a job that prints nothing for ten minutes.
BEAT = 30.0
INITIAL_LINES = 20
LONGEST_PAUSE = 300.0

MAKE_ROOM = "\x1bD\x1b[A"  # Scrolls if the cursor is on the last row, and moves back up
BELOW, BACK, CLEAR_BELOW = "\x1b7\x1b[B\r\x1b[2K", "\x1b8", "\x1b[J"


def add_progress(config: pytest.Config, controller: Controller) -> None:
    """Registers the plugins that show progress: on a terminal the progress line (unless a debugger may need it), else lines in the log."""
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
    """A pytest plugin that prints warnings about the backend's models. It does so after the first test, when the backend has started."""

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
    """A pytest plugin that prints notices of the services at once, one line each, even if no test has finished yet."""

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
            if self._reporter._tw.width_of_current_line:  # With xdist, ensure_newline does not notice a line of dots.
                self._reporter.write_line("")
            self._reporter.write_line(f"agentbench: {one_line(sentence)}", yellow=True)


class Progress:
    """Draws the progress line below the cursor. Each output of pytest erases it first."""

    def __init__(self, reporter: Any, controller: Controller) -> None:
        self._writer, self._controller = reporter._tw, controller
        self._line = ProgressLine(self._writer._file)
        self._finished = threading.Event()

    def pytest_runtestloop(self) -> None:
        self._writer._file = self._line
        daemon(self._keep_drawing, name="progress")

    def pytest_enter_pdb(self) -> None:
        """Stops drawing, because the debugger uses the terminal from here on."""
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
        opened = self._controller.opened
        in_flight = opened.services.in_flight if opened else 0
        return session_line(opened, lambda recorder: status_line(recorder, in_flight, time.monotonic()))


class ProgressLine:
    """A text file that replaces the terminal's and erases the progress line before each write.

    It draws through its own file descriptor, because pytest redirects the original one while it captures a test's output.
    """

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
            self._terminal.flush()  # The next drawing must come after this text.
            return written

    def flush(self) -> None:
        self._terminal.flush()

    def close(self) -> TextIO:
        """Erases the progress line for good. Returns the terminal's own file, which this one has replaced."""
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
    """Prints a line now and then into a log: the step that a boot waits for, or the number of finished rollouts."""

    def __init__(self, reporter: Any, controller: Controller, every: float, *, rollouts: bool) -> None:
        """`every` is the first pause in seconds. `rollouts` says whether lines are also printed after the boot."""
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
    """Returns the seconds until the next line of a log. Pauses grow with the log's age: ten hours have a hundred lines, not a thousand."""
    return max(every, min(age / INITIAL_LINES, LONGEST_PAUSE))


def session_line(opened: OpenSession | None, rollouts_line: Callable[[RunRecorder], str]) -> str:
    """Returns the line about the boot or about the rollouts, or an empty text if neither has begun."""
    if opened is None:
        return ""
    if opened.services.boot_status:
        return boot_line(opened.services)
    return rollouts_line(opened.recorder) if opened.recorder.planned_keys else ""


def boot_line(services: Services) -> str:
    """Returns, for example, `agentbench boots vllm · 83 s · engine: waiting for /health · loading weights`."""
    return f"agentbench boots {services.backend.name} · {time.monotonic() - services.boot_began:.0f} s · {services.boot_status}"


def status_line(recorder: RunRecorder, in_flight: int, now: float) -> str:
    """Returns, for example, `agentbench 17/100 · 8 in flight · 1 error · tsq 0.612 · 840 tok/s · 12 s to go`."""
    seconds = max(now - recorder.began, 1e-9)
    parts = [f"agentbench {recorder.done}/{recorder.planned_keys}", f"{in_flight} in flight"]
    parts += [f"{recorder.errors} error{'s' * (recorder.errors != 1)}"] if recorder.errors else []
    parts += [f"{name} {total / count:.3f}" for name, (total, count) in [*recorder.score_sums.items()][:1]]
    parts.append(f"{recorder.tokens / seconds:.0f} tok/s")
    if (left := expected_seconds_left(recorder, now)) is not None:
        parts.append(f"{duration_text(left)} to go")
    return " · ".join(parts)


def log_line(recorder: RunRecorder, failed_tests: int, now: float) -> str:
    """Returns, for example, `agentbench 17 of 100 rollouts done · 2 tests failed · 90 s · about 7 min to go`."""
    parts = [f"agentbench {recorder.done} of {recorder.planned_keys} rollouts done"]
    parts.append(f"{failed_tests or 'no'} test{'s' * (failed_tests != 1)} failed")
    parts.append(duration_text(now - recorder.began))
    if left := expected_seconds_left(recorder, now):
        parts.append(f"about {duration_text(left)} to go")
    return " · ".join(parts)


def expected_seconds_left(recorder: RunRecorder, now: float) -> float | None:
    """Returns the seconds until all rollouts are finished, at the speed so far, or None if this session has not finished any."""
    ran = recorder.done - recorder.reused
    return (recorder.planned_keys - recorder.done) * (now - recorder.began) / ran if ran > 0 else None


def duration_text(seconds: float) -> str:
    """Formats a duration: `90 s`, `7 min`, `2 h 05 min`."""
    minutes = round(seconds / 60)
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02} min"
