"""Where commands print sections that pytest would print."""

from __future__ import annotations


class Plain:
    """Standard output as a terminal without colours."""

    def write_sep(self, sep: str, title: str, **_markup: bool) -> None:
        print(f" {title} ".center(80, sep))

    def write_line(self, line: str, **_markup: bool) -> None:
        print(line)
