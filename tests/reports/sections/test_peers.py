"""The report in the format of another tool."""

from __future__ import annotations

from pytest_agentbench.metrics.other_tools import PeerTable
from pytest_agentbench.reports.columns import table_lines
from pytest_agentbench.reports.document import plain
from pytest_agentbench.reports.phrases import number
from pytest_agentbench.reports.sections.peers import document
from tests.findings import said, tables, texts

TWO = PeerTable("Tool 1.0", ("avg", "max"), {"TTFT": (1.25, None), "Requests": (1200,)}, ("Counts differ.", "So do clocks."))
ONE = PeerTable("Tool 1.0", ("",), {"TTFT": (float("inf"),)}, ())


def test_tables() -> None:
    """Each table says which calls it covers and how its numbers differ. Counts have no decimals, and missing values are empty."""
    report = document("tool", [("of arm a", TWO), ("of arm b", ONE)])
    first, second = tables(report, "metric")

    assert [True, True] == [of in plain(part.title) for of, part in zip(("of arm a", "of arm b"), report.sections, strict=True)]
    assert ["Tool 1.0"] * 2 == [plain(part.title)[:8] for part in report.sections]
    assert ("TTFT", 1.25, None) == first.rows[0]
    assert [(1200, 0)] == said(report, number)
    assert "" == first.rows[1][2]
    assert ["Counts differ.", "So do clocks."] == [text for text in texts(report) if text in ("Counts differ.", "So do clocks.")]
    assert ["metric  value", "TTFT      inf"] == [*table_lines(second)]
    assert ["TTFT", "1.25", "-"] == [*table_lines(first)][1].split()
