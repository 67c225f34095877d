"""Tables on a terminal: their columns, and their parts if the columns do not fit beside each other."""

from __future__ import annotations

from pytest_agentbench.reports.columns import columns, parts, table_lines
from pytest_agentbench.reports.document import Table, heads


def test_parts_begin_with_the_same_columns() -> None:
    """Columns that do not fit beside each other are split into parts that begin with the same columns. A wide column is never left out."""
    assert [[0, 1, 2]] == [*parts([5, 5, 5], 1, 30)]
    assert [[0, 1], [0, 2], [0, 3]] == [*parts([5, 5, 5, 90], 1, 18)]
    assert [[0, 1, 2], [0, 1, 3]] == [*parts([5, 5, 5, 5], 2, 20)]


def test_rows_of_parts() -> None:
    """A row is in each part in which it has a value, also one of a repeated column. Rows without values are only in tables of one part."""
    table = Table(heads("", ("base", 0), ("one", 0), ("two", 0)), (("tsq", 1, 2, 3), ("only", 9, None, None), ("last", None, None, 4)), 2)

    cells = [line.split() for line in table_lines(table, 19)]

    assert [["base", "one"], ["tsq", "1", "2"], ["only", "9", "-"], ["base", "two"]] == cells[:4]
    assert [["tsq", "1", "3"], ["only", "9", "-"], ["last", "-", "4"]] == cells[4:]
    assert 4 == len([*table_lines(table)])


def test_the_first_column_is_cut() -> None:
    """A name is truncated only if no other column fits beside it, and never without a width, or if it is short."""
    long, wide = (Table(heads("name", "what"), ((name, what),)) for name, what in (("n" * 90, "w" * 20), ("short", "w" * 90)))

    assert 50 == max(columns(line) for line in table_lines(long, 50))
    assert any("..." in line for line in table_lines(long, 50))
    assert ["n" * 90, "w" * 20] == [*table_lines(long)][1].split()
    assert ["short", "w" * 90] == [*table_lines(wide, 50)][1].split()
