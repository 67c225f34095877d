"""The output of a command as far as it is kept: its beginning and its end, and how much was between them."""

from __future__ import annotations

from pytest_agentbench.lib.cut_marks import mark

KEPT = 1 << 20  # bytes of one command's output


class Clip:
    """Takes bytes as they come, in no more memory than what it keeps."""

    def __init__(self, kept: int = KEPT) -> None:
        self._half = kept // 2
        self._head, self._tail = bytearray(), bytearray()
        self.omitted = 0  # bytes

    def add(self, piece: bytes) -> None:
        room = self._half - len(self._head)
        self._head += piece[:room]
        self._tail += piece[room:]
        if (over := len(self._tail) - self._half) > 0:
            self.omitted += over
            del self._tail[:over]

    @property
    def text(self) -> str:
        """All of it, or both ends with a line between them that says what is not there."""
        if not self.omitted:
            return (self._head + self._tail).decode(errors="replace")
        return f"{self._head.decode(errors='replace')}\n{mark(self.omitted)}\n{self._tail.decode(errors='replace')}"
