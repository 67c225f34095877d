"""One line below pytest's dots while rollouts run: done of how many, mean score so far, tokens per second, time to go.

Only on a terminal, and only where pytest's output is captured; everywhere else it is quiet.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from typing import TYPE_CHECKING, Any, TextIO

import pytest

from pytest_agentbench.foreign import one_line

if TYPE_CHECKING:
    from pytest_agentbench.controller import Controller
    from pytest_agentbench.ledger import Ledger
    from pytest_agentbench.services import Services

EVERY = 0.5  # seconds between two drawings
BEAT = 30.0  # seconds between two lines of a boot that nobody looks at
MAKE_ROOM = "\x1bD\x1b[A"  # scroll when the cursor is on the last row, and go back up
BELOW, BACK, CLEAR_BELOW = "\x1b7\x1b[B\r\x1b[2K", "\x1b8", "\x1b[J"


def add_progress(config: pytest.Config, controller: Controller) -> None:
    """Registers the line where somebody can see it, and where no debugger needs the terminal."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    seen = reporter is not None and reporter.isatty and config.get_verbosity() >= 0
    if reporter is not None:
        config.pluginmanager.register(Notes(reporter, controller), "agentbench-notes")
        config.pluginmanager.register(Sayings(reporter, controller), "agentbench-sayings")
    if seen and config.getoption("capture") != "no" and not controller.settings.inline:
        config.pluginmanager.register(Progress(reporter, controller), "agentbench-progress")
    elif reporter is not None:
        config.pluginmanager.register(Heartbeat(reporter, controller), "agentbench-heartbeat")


class Notes:
    """Says what the backend, now that it has started, gives reason to doubt, behind the first test that is over."""

    def __init__(self, reporter: Any, controller: Controller) -> None:
        self._reporter, self._controller = reporter, controller
        self._said = False

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self) -> None:
        services = self._controller.services
        if self._said or services is None or services.endpoint is None:
            return
        self._said = True
        for sentence in self._controller.model_warnings:
            self._reporter.ensure_newline()
            self._reporter.write_line(f"agentbench: {sentence}", yellow=True)


class Sayings:
    """What has to be said while no test is over, and perhaps none ever will be: a line each, at once."""

    def __init__(self, reporter: Any, controller: Controller) -> None:
        self._reporter, self._controller = reporter, controller
        self._thread: threading.Thread | None = None

    def pytest_runtestloop(self) -> None:
        if (services := self._controller.services) is not None:
            self._thread = threading.Thread(target=self._say, args=(services.sayings,), name="agentbench-sayings", daemon=True)
            self._thread.start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        if self._thread is not None and self._controller.services is not None:
            self._controller.services.sayings.put("")
            self._thread.join()

    def _say(self, sayings: queue.SimpleQueue[str]) -> None:
        while sentence := sayings.get():
            self._reporter.ensure_newline()
            self._reporter.write_line(f"agentbench: {one_line(sentence)}", yellow=True)


class Progress:
    """Draws below the cursor; whatever pytest writes wipes it away first."""

    def __init__(self, reporter: Any, controller: Controller) -> None:
        self._writer, self._controller = reporter._tw, controller
        self._line = Line(self._writer._file)
        self._over = threading.Event()

    def pytest_runtestloop(self) -> None:
        self._writer._file = self._line
        threading.Thread(target=self._keep_drawing, name="agentbench-progress", daemon=True).start()

    def pytest_enter_pdb(self) -> None:
        """The terminal is the debugger's from here on."""
        self._over.set()
        self._line.wipe()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self._over.set()
        self._writer._file = self._line.close()

    def _keep_drawing(self) -> None:
        while not self._over.wait(EVERY):
            if text := self._text():
                self._line.draw(one_line(text)[: self._writer.fullwidth - 1])

    def _text(self) -> str:
        ledger, services = self._controller.ledger, self._controller.services
        if ledger is None or services is None:
            return ""
        if services.boot_status:
            return boot_line(services)
        return status_line(ledger, time.monotonic()) if ledger.planned_keys else ""


class Line:
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
    """Where nobody looks on, a line every half a minute says what a boot waits for: a log without it looks like a session that hangs."""

    def __init__(self, reporter: Any, controller: Controller, every: float = BEAT) -> None:
        """`every` in seconds."""
        self._reporter, self._controller, self._every = reporter, controller, every
        self._over = threading.Event()

    def pytest_runtestloop(self) -> None:
        threading.Thread(target=self._keep_saying, name="agentbench-heartbeat", daemon=True).start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self._over.set()

    def _keep_saying(self) -> None:
        while not self._over.wait(self._every):
            services = self._controller.services
            if services is not None and services.boot_status:
                self._reporter.ensure_newline()
                self._reporter.write_line(one_line(boot_line(services)))


def boot_line(services: Services) -> str:
    """`agentbench boots vllm · 83 s · engine: waiting for /health · loading weights`"""
    return f"agentbench boots {services.backend.name} · {time.monotonic() - services.boot_began:.0f} s · {services.boot_status}"


def status_line(ledger: Ledger, now: float) -> str:
    """`agentbench 17/100 · tsq 0.612 · 840 tok/s · 12 s to go`"""
    seconds = max(now - ledger.began, 1e-9)
    parts = [f"agentbench {ledger.done}/{ledger.planned_keys}"]
    parts += [f"{name} {total / count:.3f}" for name, (total, count) in [*ledger.score_sums.items()][:1]]
    parts.append(f"{ledger.tokens / seconds:.0f} tok/s")
    if ran := ledger.done - ledger.taken_over:
        parts.append(f"{(ledger.planned_keys - ledger.done) * seconds / ran:.0f} s to go")
    return " · ".join(parts)
