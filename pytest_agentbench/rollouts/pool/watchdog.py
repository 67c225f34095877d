"""Threads that watch a process which runs rollouts: its event loop, which a rollout's code may block, and the life of its parent.

The stack of the loop's thread shows which rollout blocks it. If the time of that rollout is over, the pool ends.
"""

from __future__ import annotations

import faulthandler
import linecache
import os
import sys
import sysconfig
import threading
import time
from asyncio.events import Handle
from collections.abc import Iterator, Sequence
from contextvars import Context
from pathlib import Path
from types import FrameType
from typing import NamedTuple, Protocol

import pytest_agentbench
from pytest_agentbench.lib.process import SESSION, end_marked
from pytest_agentbench.lib.threads import daemon
from pytest_agentbench.records import Rollout
from pytest_agentbench.rollouts.attempt_context import AttemptContext, attempt_in


def end_leftovers() -> None:
    """Ends the processes that agents and scorers left running. The mark in their environment identifies them."""
    if mark := os.environ.get(SESSION):
        end_marked(SESSION, mark)


def exit_after_stdin(stdin: int, parent: int, grace: float) -> None:
    """Waits until the descriptor `stdin` closes, and exits `grace` seconds later.

    The event loop handles the end of stdin, too, but not while an agent blocks it, and it does not exit before the agents' threads do.
    `parent` is the id of the process that started this one. If it lives, it ends the leftovers itself, and counts them.
    """
    while os.read(stdin, 4096):
        pass
    time.sleep(grace)
    if os.getppid() != parent:
        end_leftovers()
    os._exit(0)


OWN_FOLDER = str(Path(pytest_agentbench.__file__).parent)
PYTHON_FOLDERS = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})
INSTALLED = ("/site-packages/", "/dist-packages/")


class CodeLine(NamedTuple):
    """A line of a source file, as shown in messages."""

    file: str
    number: int

    def __str__(self) -> str:
        """Returns file name, number and text: `agent.py:12: time.sleep(3600)`."""
        text = linecache.getline(self.file, self.number).strip()
        return f"{Path(self.file).name}:{self.number}{text and f': {text}'}"


def step_of(frame: FrameType) -> FrameType | None:
    """Returns the frame of the callback (step) that an event loop runs in this stack, or None while the loop waits.

    The same frame object in two samples means that the same callback still runs.
    """
    return next((each for each in _outwards(frame) if each.f_code is Handle._run.__code__), None)


def context_of(step: FrameType) -> Context:
    """Returns the `contextvars.Context` in which a step runs: that of its task, or of the task that scheduled the callback."""
    context: Context = step.f_locals["self"]._context
    return context


def lines_of(frame: FrameType) -> list[CodeLine]:
    """Returns the lines that a stack executes, the innermost one first."""
    return [CodeLine(each.f_code.co_filename, each.f_lineno) for each in _outwards(frame)]


def line_to_name(lines: Sequence[CodeLine]) -> CodeLine:
    """Returns the line that a message about a blocked loop should show: the innermost line of the user's own code.

    If there is none, returns the outermost line of an installed package, and without one the innermost line.
    """
    own = [each for each in lines if _is_users(each.file)]
    installed = [each for each in reversed(lines) if _is_installed(each.file)]
    return (own or installed or lines)[0]


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_installed(file: str) -> bool:
    return any(each in file for each in INSTALLED) and not _is_in(file, OWN_FOLDER)


def _is_users(file: str) -> bool:
    """Returns whether a file belongs to the user: not to this package, Python or an installed package."""
    return not file.startswith("<") and not _is_installed(file) and not any(_is_in(file, each) for each in (OWN_FOLDER, *PYTHON_FOLDERS))


def _is_in(file: str, folder: str) -> bool:
    return file.startswith(f"{folder}/")


TICK = 0.5  # seconds between two samples of the stack
PATIENCE = 3.0  # seconds of one step after which the loop counts as blocked
GRACE = 5.0  # seconds that no Python thread can run, beyond the longest time of a rollout, before the pool ends
STDERR = 2  # file descriptor, because `sys.stderr` is redirected to the logs of rollouts
ADVICE = "use `def`, `await asyncio.to_thread(...)` or `isolation: process`"


class ControllerLine(Protocol):
    """The methods of ControllerPipe that the watchdog calls in its thread, while the event loop is blocked."""

    def say(self, sentence: str) -> None:
        """Shows a sentence to the user."""

    def leave(self, rollout: Rollout | None) -> None:
        """Ends the pool process. `rollout` is the final record of the rollout that blocks the loop, or None if that rollout has ended."""


class Watchdog:
    """A thread that samples the stack of the event loop's thread.

    It warns the user if a step (a callback of the loop) blocks the loop, and ends the pool if the time of the step's rollout is over.

    The time of a step, unlike a rollout's limit, is counted in samples, so time in which the whole process was stopped does not count.
    """

    def __init__(self, pipe: ControllerLine, longest: float) -> None:
        """Must be called in the thread of the event loop. `longest` is the longest time limit of a rollout, in seconds."""
        self._pipe, self._longest = pipe, longest
        self._thread = threading.get_ident()
        self._stopped = threading.Event()
        self._step: FrameType | None = None  # step of the loop in the last sample
        self._samples = 0  # further samples of this step
        self._reported = False  # whether the user was warned about this step

    def start(self) -> None:
        self._watch_itself()
        daemon(self._watch, name="watchdog")

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(TICK):
            self._watch_itself()
            self.check(sys._current_frames()[self._thread])
        faulthandler.cancel_dump_traceback_later()

    def _watch_itself(self) -> None:
        """Has faulthandler end the pool, with all stacks in its log, if C code keeps all Python threads from running, so also this one."""
        faulthandler.dump_traceback_later(self._longest + GRACE, exit=True, file=STDERR)

    def check(self, frame: FrameType) -> None:
        """Handles a sample: the innermost frame of the loop's thread."""
        step = step_of(frame)
        if step is None or step is not self._step:
            if self._reported:
                self._pipe.say(f"the event loop runs again after {self._seconds:.0f} s")
            self._step, self._samples, self._reported = step, 0, False
            return
        self._samples += 1
        if self._seconds >= PATIENCE:
            self._judge(step, line_to_name(lines_of(frame)))

    @property
    def _seconds(self) -> float:
        """The time that the current step has taken at least, in seconds."""
        return self._samples * TICK

    def _judge(self, step: FrameType, line: CodeLine) -> None:
        """Warns once about the step that blocks the loop, with the line to show, and ends the pool if its rollout's time is over."""
        mark = attempt_in(context_of(step))
        if not self._reported:
            self._reported = True
            self._pipe.say(f"{_whose(mark)} blocks the event loop, and with it all rollouts: {line}; {ADVICE}")
        if mark is not None and mark.over_at is not None and time.monotonic() >= mark.over_at:
            self._end(mark, line)

    def _end(self, mark: AttemptContext, line: CodeLine) -> None:
        why = f"{mark.part} blocked the event loop until its {mark.seconds:g} s were over: {line}; {ADVICE}"
        blocked = Rollout(*mark.key, status="agent_error", reason=why, log=mark.log.text)
        self._pipe.leave(None if mark.is_over else mark.without_score(why) or blocked)


def _whose(mark: AttemptContext | None) -> str:
    if mark is None:
        return "a suite's code"
    return f"{mark.key}: {'code that its agent left running' if mark.is_over else mark.part}"
