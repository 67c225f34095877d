"""A run as another tool would have printed it."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_agentbench.metrics.other_tools import PeerTable
from pytest_agentbench.reports.numbers import number


def lines(figures: PeerTable, of: str) -> Iterator[str]:
    """The tool's table, and how its numbers differ from ours; `of` says whose calls they are, such as `of this run`."""
    yield f"{figures.title}, from the raw records {of}"
    width = max(map(len, figures.rows), default=0)
    if any(figures.columns):
        yield f"{'':<{width}}" + "".join(f"{column:>12}" for column in figures.columns)
    for name, values in figures.rows.items():
        yield f"{name:<{width}}" + "".join(f"{_cell(value):>12}" for value in values)
    yield ""
    yield from (f"- {sentence}" for sentence in figures.differs)


def _cell(value: float | None) -> str:
    return number(value, 0 if isinstance(value, int) else 2)
