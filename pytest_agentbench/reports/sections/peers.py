"""The report of a run in the format of another tool (a peer), such as AIPerf."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice, repeat

from pytest_agentbench.metrics.other_tools import PeerTable
from pytest_agentbench.reports import comparison_phrases
from pytest_agentbench.reports.document import Bullets, Document, Section, Table, TableCell, heads, say
from pytest_agentbench.reports.phrases import number

DIGITS = 2


def document(tool: str, tables: Iterable[tuple[str, PeerTable]]) -> Document:
    """Returns a report with the tables of a tool, and notes on how their numbers differ from those of our other reports.

    Args:
        tool: Name of the tool.
        tables: Pairs of a phrase that says which calls a table is about, for example `of this run`, and the table.
    """
    return Document(tool, None, tuple(_section(of, figures) for of, figures in tables))


def _section(of: str, figures: PeerTable) -> Section:
    columns = heads("metric", *((title or "value", DIGITS) for title in figures.columns))
    rows = tuple((name, *_cells(values, len(figures.columns))) for name, values in figures.rows.items())
    differs = Bullets(tuple(figures.differs))
    return Section(comparison_phrases.peer_table(figures.title, of), (Table(columns, rows), differs))


def _cells(values: Iterable[float | None], width: int) -> Iterator[TableCell]:
    """Yields the cells of a row. Counts have no decimal places; missing values at the end become empty cells."""
    for value in islice(chain(values, repeat("")), width):
        yield say(number, value, 0) if isinstance(value, int) else value
