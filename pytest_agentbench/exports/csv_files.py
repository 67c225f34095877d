"""CSV: a file for each table, and `columns.csv`, which says what every column is."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pytest_agentbench.exports.chosen_runs import ChosenRuns
from pytest_agentbench.tables.columns import Table

COLUMNS = ("table", "column", "unit", "is")


class CsvFile:
    """A CSV file that is being written, row by row."""

    def __init__(self, path: Path, header: Sequence[str]) -> None:
        self._stream = path.open("w", encoding="utf-8", newline="")
        self._writer = csv.writer(self._stream, lineterminator="\n")
        self.write(header)

    def write(self, row: Sequence[Any]) -> None:
        """A row; a value that is None is empty."""
        self._writer.writerow(row)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._stream.close()


def write(chosen: ChosenRuns, directory: Path) -> None:
    """A value that is not known is empty; a text that is empty looks the same."""
    for table in chosen.tables.all:
        write_rows(directory / f"{table.name}.csv", [head.name for head in table.heads], table.rows())
    write_rows(directory / "columns.csv", COLUMNS, (row for table in chosen.tables.all for row in _about(table)))


def write_rows(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A whole CSV file."""
    with CsvFile(path, header) as file:
        for row in rows:
            file.write(row)


def _about(table: Table) -> list[tuple[str, str, str, str]]:
    return [(table.name, head.name, head.unit, head.about) for head in table.heads]
