"""A terminal for tests of printed reports."""

from __future__ import annotations


class Paper:
    """A terminal that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write_sep(self, sep: str, title: str, **_markup: bool) -> None:
        self.lines.append(f"{sep} {title}")

    def write_line(self, line: str, **_markup: bool) -> None:
        self.lines.append(line)
