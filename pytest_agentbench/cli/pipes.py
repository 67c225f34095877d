"""Standard output and standard error whose reader may leave early, as `head` does."""

from __future__ import annotations

import os
from typing import Any, TextIO


class ReaderGone(BaseException):
    """Nobody reads what is printed any more. Like Ctrl-C it is no error, and ends what runs."""


class Pipe:
    """A stream that raises ReaderGone where Python raises BrokenPipeError, which a socket's may be too."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        try:
            return self.stream.write(text)
        except BrokenPipeError:
            raise ReaderGone from None

    def flush(self) -> None:
        try:
            self.stream.flush()
        except BrokenPipeError:
            raise ReaderGone from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def abandon(*streams: TextIO) -> None:
    """Leads those that nobody reads to nowhere, for what they still hold is written when Python ends."""
    for stream in streams:
        try:
            stream.flush()
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
