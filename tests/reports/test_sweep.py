"""The report of a sweep."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_agentbench.reports import capacity_phrases, phrases
from pytest_agentbench.reports.document import Figure, Level
from pytest_agentbench.reports.sweep import document
from pytest_agentbench.stats.decisions import FAIL, PASS
from pytest_agentbench.stats.means import Interval
from pytest_agentbench.sweep.levels import Criteria, LevelVerdict, SustainedRange, Sweep, read_sweep
from tests.findings import said, tables
from tests.sweep.test_levels import ROLLOUTS, sweep_directory

TERMS = Criteria({"ttft": 50.0}, 0.9, 0.9)
HIGH, LOW = (Interval(*ends, n=9, clusters=9, standard_error=None, method="none") for ends in ((0.99, 0.95, 1.0), (0.5, 0.4, 0.6)))
JUDGED = (LevelVerdict(1, HIGH, PASS, None), LevelVerdict(4, LOW, FAIL, None))


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    """Returns a sweep of two levels."""
    return read_sweep(sweep_directory(tmp_path / "run", *ROLLOUTS))


def test_levels(sweep: Sweep) -> None:
    """Each level has a row with its numbers and verdict. Without objectives, the share of good calls is empty."""
    report = document(sweep, JUDGED, TERMS)
    [table] = tables(report, "in flight")
    free = document(sweep, [LevelVerdict(level, None, PASS, None) for level in (1, 4)], Criteria({}))

    assert [[1, 3, 0, 60 / 15], [4, 2, 0, 20 / 4]] == [[*row[:3], row[4]] for row in table.rows]
    assert [(PASS,), (FAIL,)] == said(report, capacity_phrases.level_verdict)
    assert [(0.99, 0.95, 1.0), (0.5, 0.4, 0.6)] == said(report, capacity_phrases.good_share)
    assert [] == said(free, capacity_phrases.good_share)


def test_conclusions(sweep: Sweep) -> None:
    """Three levels have a knee, two do not. Facts name left-out rollouts and levels that were not full."""
    report = document(sweep, JUDGED, TERMS)
    one, four = sweep.levels
    longer = replace(sweep, levels=(one, four, replace(four, concurrency=8)), warm_up={1: 2, 4: 1, 8: 0})

    assert [] == said(report, capacity_phrases.knee)
    assert [(SustainedRange(1, 4), TERMS)] == said(report, capacity_phrases.greatest)
    assert [(3,)] == said(report, capacity_phrases.warm_up)
    assert [] == said(report, capacity_phrases.unwarmed)
    assert [(4, 2)] == said(report, capacity_phrases.short_blocks)
    assert [] == said(report, capacity_phrases.lost_rollouts)
    assert [(sweep.run,)] == said(report, phrases.not_run)
    more = document(longer, (*JUDGED, LevelVerdict(8, LOW, FAIL, None)), TERMS)
    assert [(4, 8)] == said(more, capacity_phrases.knee)
    assert [([8],)] == said(more, capacity_phrases.unwarmed)


def test_the_picture_is_only_in_files(sweep: Sweep) -> None:
    """A terminal shows neither the picture nor the names of files. Without matplotlib there is no picture."""
    report = document(sweep, JUDGED, TERMS, "sweep.png")

    assert ["sweep.png"] == [each.path for each in report.blocks() if isinstance(each, Figure)]
    assert [(sweep.run,)] == said(report, capacity_phrases.sweep_files)
    assert [] == [each for each in report.at(Level.FULL).blocks() if isinstance(each, Figure)]
    assert [] == said(report.at(Level.FULL), capacity_phrases.sweep_files)
    assert [] == [each for each in document(sweep, JUDGED, TERMS).blocks() if isinstance(each, Figure)]
