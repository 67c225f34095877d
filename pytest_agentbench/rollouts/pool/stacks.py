"""What a thread is doing, read from its stack by another thread."""

from __future__ import annotations

import linecache
import sysconfig
from asyncio.events import Handle
from collections.abc import Iterator, Sequence
from contextvars import Context
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import pytest_agentbench

OURS = str(Path(pytest_agentbench.__file__).parent)
PYTHONS = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})
PACKAGES = ("/site-packages/", "/dist-packages/")


class CodeLine(NamedTuple):
    """A line of code."""

    file: str
    number: int

    def __str__(self) -> str:
        """`agent.py:12: time.sleep(3600)`"""
        text = linecache.getline(self.file, self.number).strip()
        return f"{Path(self.file).name}:{self.number}{text and f': {text}'}"


def step_of(frame: FrameType) -> FrameType | None:
    """The step that an event loop takes in a stack, which is another object in each step; None while the loop waits."""
    return next((each for each in _outwards(frame) if each.f_code is Handle._run.__code__), None)


def context_of(step: FrameType) -> Context:
    """That a step is taken in: of the task, or of the one that has scheduled the callback."""
    context: Context = step.f_locals["self"]._context
    return context


def lines_of(frame: FrameType) -> list[CodeLine]:
    """The innermost one comes first."""
    return [CodeLine(each.f_code.co_filename, each.f_lineno) for each in _outwards(frame)]


def line_to_name(lines: Sequence[CodeLine]) -> CodeLine:
    """The line of a stack that its reader has written, or can do something about.

    It is the innermost one of the user's own code; without any, the outermost one of a package that was installed;
    without that, the innermost one of all.
    """
    own = [each for each in lines if _is_users(each.file)]
    installed = [each for each in reversed(lines) if _is_installed(each.file)]
    return (own or installed or lines)[0]


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_installed(file: str) -> bool:
    return any(each in file for each in PACKAGES) and not _is_in(file, OURS)


def _is_users(file: str) -> bool:
    """Whether a file is neither ours, nor of Python, nor of a package that was installed."""
    return not file.startswith("<") and not _is_installed(file) and not any(_is_in(file, each) for each in (OURS, *PYTHONS))


def _is_in(file: str, folder: str) -> bool:
    return file.startswith(f"{folder}/")
