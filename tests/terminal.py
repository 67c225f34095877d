"""A terminal for tests: runs a command on a pseudo terminal, and computes the screen that a reader sees."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

ROWS, COLUMNS = 24, 100
SEQUENCE = re.compile(r"\x1b\[(?P<number>\d*)[;\d]*(?P<letter>[A-Za-z])|\x1b(?P<short>[78D])|(?P<text>[^\x1b])", re.DOTALL)


def run_on_terminal(command: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> tuple[int, str]:
    """Returns the exit status and the output of a command on a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    with subprocess.Popen(command, cwd=cwd, env={**environment, "TERM": "xterm"}, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        written = bytearray()
        try:
            while part := os.read(ours, 65536):
                written += part
        except OSError:
            pass  # Linux reports the closed other side like this.
        os.close(ours)
    return process.returncode, written.decode()


class Screen:
    """The screen of a terminal after a text was written to it, including lines that have scrolled away."""

    def __init__(self, text: str) -> None:
        self.lines: list[list[str]] = [[] for _ in range(ROWS)]
        self.top = self.row = self.column = 0  # `row` counts from the first line ever, and `top` is the first visible one.
        self._saved = (0, 0)
        for found in SEQUENCE.finditer(text):
            if found["text"]:
                self._write(found["text"])
            else:
                self._move(found["short"] or found["letter"], int(found["number"] or 0))

    def __str__(self) -> str:
        return "\n".join("".join(line).rstrip() for line in self.lines).rstrip()

    def _write(self, letter: str) -> None:
        if letter == "\r":
            self.column = 0
        elif letter == "\n":
            self._down()
        else:
            if self.column == COLUMNS:
                self.column = 0
                self._down()
            line = self.lines[self.row]
            line.extend(" " * (self.column + 1 - len(line)))
            line[self.column] = letter
            self.column += 1

    def _down(self) -> None:
        """Moves one line down. The screen scrolls after its last line."""
        self.row += 1
        if self.row == self.top + ROWS:
            self.top += 1
            self.lines.append([])

    def _move(self, what: str, number: int) -> None:
        match what:
            case "7":
                self._saved = self.row - self.top, self.column
            case "8":
                self.row, self.column = self._saved[0] + self.top, self._saved[1]
            case "D":
                self._down()
            case "A":
                self.row = max(self.top, self.row - (number or 1))
            case "B":
                self.row = min(self.top + ROWS - 1, self.row + (number or 1))
            case "K":
                del self.lines[self.row][0 if number == 2 else self.column :]
            case "J":
                del self.lines[self.row][self.column :]
                for line in self.lines[self.row + 1 :]:
                    line.clear()
            case _:
                pass  # This is a colour.
