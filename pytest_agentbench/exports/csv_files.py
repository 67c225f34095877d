"""Writes CSV files (RFC 4180): one for each table of a run, and `columns.csv`, which describes every column.

Some texts of servers and data sets may look like formulas, which a spreadsheet would execute. They get an apostrophe, unless the user
wants exact files.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pytest_agentbench.exports.files import ChosenRuns
from pytest_agentbench.metrics.columns import FrameTable

COLUMNS = ("table", "column", "unit", "is")

#: First characters of texts that spreadsheets treat as formulas, from OWASP's page on CSV injection.
_FORMULA = re.compile("[=+@\t\r\n\uff1d\uff0b\uff0d\uff20-]")
_NUMBER = re.compile(r"[+-](?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?")


def inert(value: Any) -> Any:
    """Returns a cell that spreadsheets do not execute: a text that begins like a formula gets an apostrophe. Numbers are unchanged."""
    if isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.fullmatch(value):
        return f"'{value}"
    return value


class CsvFile:
    """A CSV file that is being written, row by row. Unpaired surrogates, which UTF-8 cannot encode, become escapes."""

    def __init__(self, path: Path, header: Sequence[str], *, exact: bool = False) -> None:
        """`exact`: texts that spreadsheets treat as formulas are written unchanged."""
        self._exact = exact
        self._stream = path.open("w", encoding="utf-8", errors="backslashreplace", newline="")
        # csv quotes a cell with \r or \n only if the line terminator contains that character.
        self._writer = csv.writer(self._stream, lineterminator="\r\n")
        self.write(header)

    def write(self, row: Sequence[Any]) -> None:
        """Writes a row. None becomes an empty cell."""
        self._writer.writerow(row if self._exact else [*map(inert, row)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._stream.close()


def write(chosen: ChosenRuns, directory: Path) -> None:
    """Writes a CSV file for each table of the runs, and `columns.csv`. Unknown values and empty texts are empty cells."""
    for table in chosen.tables.all:
        write_rows(directory / f"{table.name}.csv", [head.name for head in table.heads], table.rows(), exact=chosen.exact)
    write_rows(directory / "columns.csv", COLUMNS, (row for table in chosen.tables.all for row in _about(table)), exact=chosen.exact)


def write_rows(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]], *, exact: bool = False) -> None:
    """Writes a whole CSV file. `exact`: texts that spreadsheets treat as formulas are written unchanged."""
    with CsvFile(path, header, exact=exact) as file:
        for row in rows:
            file.write(row)


def _about(table: FrameTable) -> list[tuple[str, str, str, str]]:
    return [(table.name, head.name, head.unit, head.about) for head in table.heads]
