"""The report of a simulation."""

from __future__ import annotations

from dataclasses import replace

from pytest_agentbench.reports import capacity_phrases
from pytest_agentbench.reports.document import Note
from pytest_agentbench.reports.sections.what_if import document
from pytest_agentbench.simulation.figures import Figures
from pytest_agentbench.simulation.replay import MOCKER, Setting
from pytest_agentbench.simulation.what_if import SCHEMA, SettingEstimate, WhatIf, ranked
from tests.findings import facts, said, tables


def figures(ttft: float, duration: float) -> Figures:
    return Figures(None, ttft, None, None, None, None, None, duration)


OWN = SettingEstimate(Setting(1, 500, 16, "round_robin"), own=True, figures=figures(200.0, 10.0), ranks={})
OTHER = SettingEstimate(Setting(2, 500, 16, "kv"), own=False, figures=figures(100.0, 10.0), ranks={})
ANSWER = ranked(WhatIf(SCHEMA, "one", 3, 1, {}, MOCKER, (), figures(200.0, 10.0), OWN, {}, [OWN, OTHER]))


def test_settings() -> None:
    """There is a row for the measurement, and one for each setting, with ranks if the settings differ enough."""
    [table] = tables(document(ANSWER), "setting")

    assert ["setting", "TTFT p50 ms", "duration s"] == [column.title for column in table.columns]
    assert ("measured", 200.0, 10.0) == table.rows[0]
    assert [(200.0, 1, 2), (10.0, 1, None), (100.0, 1, 1), (10.0, 1, None)] == said(document(ANSWER), capacity_phrases.ranked)
    assert [True, False] == [answer.own for (answer,) in said(document(ANSWER), capacity_phrases.setting)]


def test_the_anchor_comes_first() -> None:
    """The error of the simulation comes first, then the replayed calls and the speed of a worker."""
    report = document(ANSWER)

    assert ["anchor", "replayed", "speed", "TTFT p50", "duration"] == [each.label for label in LABELS for each in facts(report, label)]
    assert [(ANSWER,)] == said(report, capacity_phrases.anchor) == said(report, capacity_phrases.replayed)
    assert [(MOCKER,)] == said(report, capacity_phrases.worker_speed)
    assert "anchor" == getattr(next(report.blocks()), "label", "")


LABELS = ("anchor", "replayed", "speed", "TTFT p50", "duration")


def test_ranking() -> None:
    """Each metric says whether settings are ranked.

    Without the run's own setting nothing is ranked, and a single setting has no ranking.
    """
    unknown = replace(ANSWER, own=None, off={}, lacking=("workers",))
    alone = replace(ANSWER, answers=[OWN])

    assert ["ttft_p50_ms", "duration_s"] == [measure.name for _, measure in said(document(ANSWER), capacity_phrases.ranking)]
    assert [capacity_phrases.NOT_RANKED] == [each.content for each in document(unknown).blocks() if isinstance(each, Note)]
    for report in map(document, (unknown, alone)):
        assert [] == said(report, capacity_phrases.ranking)
    assert [] == [each for each in document(alone).blocks() if isinstance(each, Note)]
