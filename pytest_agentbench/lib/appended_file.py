"""A file that another process appends lines to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


class AppendedFile:
    """Its lines from now on; it need not exist yet. What is in it is passed over, and one that got shorter is read from its start."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = self._size()  # bytes

    def new_lines(self) -> Iterator[bytes]:
        """Lines that are whole and were not given before, with their line ends; raises OSError."""
        size = self._size()
        if size < self._read:
            self._read = 0
        if size == self._read:
            return
        with self.path.open("rb") as lines:
            lines.seek(self._read)
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                yield line

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0
