"""Texts and tables in the columns of a terminal: how many they take, cut to so many, or folded into several lines."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import accumulate

from pytest_agentbench.lib.foreign import one_line
from pytest_agentbench.reports import phrases
from pytest_agentbench.reports.document import Column, Table, plain

GAP = "  "  # between the columns of a table
DOTS = "..."  # for what is left out


def columns(text: str) -> int:
    """How many columns a terminal takes for a text: two for a wide character, none for one that stands on the one before."""
    return sum(0 if unicodedata.combining(letter) else 1 + (unicodedata.east_asian_width(letter) in "FW") for letter in text)


def cut(text: str, width: int) -> str:
    """The text in at most so many columns."""
    if columns(text) <= width:
        return text
    available, taken = width - len(DOTS), accumulate(map(columns, text))
    end = next(place for place, so_far in enumerate(taken) if so_far > available)
    return text[:end].rstrip() + DOTS[: max(width, 0)]


def fold(text: str, width: int) -> Iterator[str]:
    """The text in lines of at most so many columns, broken where a space is; a word that is longer has a line of its own."""
    line = ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else word
        if line and columns(longer) > width:
            yield line
            longer = word
        line = longer
    yield line


def table_lines(table: Table, width: int = sys.maxsize) -> Iterator[str]:
    """Yields a table; if its columns do not fit beside each other, in several parts, each of which begins with the same columns.

    Rows without a value are left out of a part. The first column is cut if not even one other column fits beside it.
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
    """Yields the places of columns that stand beside each other, the first ones in each part: as many as fit, one other at least."""
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
