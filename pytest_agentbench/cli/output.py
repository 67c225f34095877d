"""Prints report sections for commands. Handles readers of the output that close it early, such as `head`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

from pytest_agentbench.lib.foreign import ForeignOutput, one_line

if TYPE_CHECKING:
    from pytest_agentbench.reports.document import Document


class OutputClosed(BaseException):
    """The reader has closed the output. Like KeyboardInterrupt, this ends the command and is not an error."""


class Pipe:
    """An output stream that raises OutputClosed instead of BrokenPipeError, which a socket could also raise."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        try:
            return self.stream.write(text)
        except BrokenPipeError:
            raise OutputClosed from None

    def flush(self) -> None:
        try:
            self.stream.flush()
        except BrokenPipeError:
            raise OutputClosed from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def abandon(*streams: TextIO) -> None:
    """Redirects closed output streams to the null device. Otherwise Python fails at its end, when it writes their buffers."""
    for stream in streams:
        try:
            stream.flush()
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


class PlainOutput:
    """A terminal without colours that prints one line at a time on standard output."""

    def write_sep(self, sep: str, title: str, **_markup: bool) -> None:
        print(f" {one_line(title)} ".center(80, sep))

    def write_line(self, line: str, **_markup: bool) -> None:
        print(one_line(line))


def print_document(document: Document, width: int = sys.maxsize) -> None:
    """Prints a report as a terminal shows it, in this many columns."""
    from pytest_agentbench.reports.document import Level
    from pytest_agentbench.reports.terminal import lines, write

    write(PlainOutput(), lines(document, Level.FULL, width))


def print_markdown(document: Document) -> None:
    """Prints a report as Markdown."""
    from pytest_agentbench.reports.document import Level
    from pytest_agentbench.reports.markdown import lines

    for line in lines(document, Level.VERBOSE):
        print(line)


def mean_text(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


def draw(line: str) -> None:
    """Replaces the last line of the terminal with a text, on standard error. Shows progress that does not stay on the screen."""
    sequence = f"\r\x1b[2K{one_line(line)}"
    if isinstance(sys.stderr, ForeignOutput):
        sys.stderr.draw(sequence)
    else:
        sys.stderr.write(sequence)
        sys.stderr.flush()
