"""CSV: a file for each table, and `columns.csv`, which says what every column is."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pytest_agentbench.exports.chosen import Chosen
from pytest_agentbench.tables.columns import Table

COLUMNS = ("table", "column", "unit", "is")


def write(chosen: Chosen, directory: Path) -> None:
    """A value that is not known is empty; a text that is empty looks the same."""
    for table in chosen.tables.all:
        write_rows(directory / f"{table.name}.csv", [head.name for head in table.heads], table.rows())
    write_rows(directory / "columns.csv", COLUMNS, (row for table in chosen.tables.all for row in _about(table)))


def write_rows(file: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A CSV file with a header."""
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def _about(table: Table) -> list[tuple[str, str, str, str]]:
    return [(table.name, head.name, head.unit, head.about) for head in table.heads]
