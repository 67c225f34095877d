"""The proof in docs/verdict-results.md, in small: `python -m tests.benchmarks verdicts` has all cells."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.benchmarks.verdicts.cells import Cell, simulate

from tests.benchmarks.verdicts.benchmark import COVERAGE, RISK, uneven, within

PAGE = Path(__file__).parents[2] / "docs/verdict-results.md"
RUNS = 1000


@pytest.mark.parametrize(
    "cell",
    [
        Cell("ceiling", 20, 1),
        Cell("mixed", 20, 5),
        Cell("sure", 100, 1),
        Cell("graded", 100, 1),
        Cell("ceiling", 100, 5),
        Cell("mixed", 300, 3, uneven(300, 40)),
    ],
    ids=str,
)
def test_verdicts_hold(cell: Cell) -> None:
    """A drop as large as the margin passes, and no change fails, at most one time in twenty; intervals hold the truth."""
    outcome = simulate(cell, RUNS, seed=11)

    assert outcome.gate.wrong_pass <= within(RISK, RUNS)
    assert outcome.gate.false_alarm <= within(RISK, RUNS)
    assert 1 - outcome.gate.coverage <= within(1 - COVERAGE, RUNS)
    assert outcome.threshold.wrong_pass > 0.3, "a bare threshold is what the gate is better than"


def test_the_committed_table_holds() -> None:
    """Every share of wrong verdicts, and of coverage, that the page shows for the gate is what the gate promises."""
    page, _, _ = PAGE.read_text("utf-8").partition("## A run against a limit")
    rows = re.findall(r"^\| (\d+(?: in \d+)?) \| (\d) \| (\w+) \| ([\d.]+) % \| ([\d.]+) % \| ([\d.]+) % \|", page, re.MULTILINE)

    assert len(rows) >= 75
    assert [] == [row for row in rows if float(row[3]) > 100 * within(RISK, 5000) or float(row[4]) > 100 * within(RISK, 5000)]
    assert [] == [row for row in rows if float(row[5]) < 100 * (1 - within(1 - COVERAGE, 5000))]
