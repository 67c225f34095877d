"""Measures, truncates and folds texts by their width on a terminal, and lays out tables."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import accumulate

from pytest_agentbench.lib.foreign import one_line
from pytest_agentbench.reports import phrases
from pytest_agentbench.reports.document import Column, Table, plain

GAP = "  "  # between two columns of a table
DOTS = "..."  # at the end of a truncated text


def columns(text: str) -> int:
    """Returns the width of a text on a terminal: two columns for a wide character, none for a combining one."""
    return sum(0 if unicodedata.combining(letter) else 1 + (unicodedata.east_asian_width(letter) in "FW") for letter in text)


def cut(text: str, width: int) -> str:
    """Truncates a text to at most `width` columns."""
    if columns(text) <= width:
        return text
    available, taken = width - len(DOTS), accumulate(map(columns, text))
    end = next(place for place, so_far in enumerate(taken) if so_far > available)
    return text[:end].rstrip() + DOTS[: max(width, 0)]


def fold(text: str, width: int) -> Iterator[str]:
    """Yields a text in lines of at most `width` columns, broken at spaces. A longer word gets its own line."""
    line = ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else word
        if line and columns(longer) > width:
            yield line
            longer = word
        line = longer
    yield line


def table_lines(table: Table, width: int = sys.maxsize) -> Iterator[str]:
    """Yields the lines of a table. If it is too wide, it is split into parts, which all begin with the same columns.

    A part leaves out rows without values. The first column is truncated if no other column fits beside it.
    """
    header = [one_line(column.title) for column in table.columns]
    rows = [[one_line(plain(phrases.cell(cell, column))) for cell, column in zip(row, table.columns, strict=True)] for row in table.rows]
    widths = [max(map(columns, texts)) for texts in zip(header, *rows, strict=True)]
    others = sum(widths[1 : table.repeated]) + max(widths[table.repeated :], default=0) + len(GAP) * table.repeated
    widths[0] = min(widths[0], max(width - others, width // 3))
    for places in parts(widths, table.repeated, width):
        for row in (header, *rows):
            cells = [row[place] for place in places]
            if row is header or any(cell not in ("", "-") for cell in cells[1:]) or len(places) == len(widths):
                yield GAP.join(_padded(cut(row[place], widths[place]), widths[place], table.columns[place]) for place in places).rstrip()


def parts(widths: Sequence[int], repeated: int, width: int) -> Iterator[list[int]]:
    """Splits the columns of a table into parts that fit into the width. Yields the column indexes of each part.

    Every part has the first `repeated` columns, and at least one other if there is one.
    """
    first = [*range(min(repeated, len(widths)))]
    part = list(first)
    for place in range(len(first), len(widths)):
        if len(part) > len(first) and sum(widths[each] + len(GAP) for each in (*part, place)) - len(GAP) > width:
            yield part
            part = list(first)
        part.append(place)
    yield part


def _padded(text: str, width: int, column: Column) -> str:
    padding = " " * (width - columns(text))
    return padding + text if column.has_numbers else text + padding
