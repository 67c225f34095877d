"""The report of a profile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pytest_agentbench.profile import Profile, read_profile
from pytest_agentbench.profile.prefixes import PromptReuse
from pytest_agentbench.profile.slow_phases import Concurrency, ConcurrencyLevel, Latencies, Spike
from pytest_agentbench.reports import profile_phrases
from pytest_agentbench.reports.document import Note
from pytest_agentbench.reports.sections.profile import document
from tests.findings import said, tables, texts
from tests.made_runs import run_directory
from tests.tables.shop import ALL

NO_PROMPTS = PromptReuse(0, 2, 0.0, 0.0, 0.0, None, 0, False, ())


def test_a_run(tmp_path: Path) -> None:
    """Each slow call has a row with the reason, each branch of the tree one with its numbers. Shared prefixes have a summary."""
    profile = read_profile(run_directory(tmp_path / "run", *ALL))
    report = document(profile)

    [slow], [tree] = tables(report, "ms"), [table for table in tables(report, "") if table.columns[1].title == "count"]
    assert [each.call.total_ms for each in profile.slowest] == [row[0] for row in slow.rows]
    assert [each.in_flight or None for each in profile.slowest] == [row[-2] for row in slow.rows]
    assert [each.why for each in profile.slowest] == [text for text in texts(report) if text in {each.why for each in profile.slowest}]
    assert [(each.count, each.total_s, each.self_s) for each in profile.tree] == [row[1:4] for row in tree.rows]
    assert [(each,) for each in profile.tree] == said(report, profile_phrases.branch)
    assert 4 == len(report.sections)


def test_spikes() -> None:
    """Spikes have a table, and the latencies inside and outside. Without spikes both are missing."""
    level = ConcurrencyLevel(3, 4, 0.5, Latencies(2, 10.0, 20.0))
    found = Concurrency(
        4, 9, 0.1, 2, (Spike(1.5, 0.25, 9, Latencies(3, 50.0, None)),), Latencies(3, 50.0, None), Latencies(7, 9.0, 10.0), (level,)
    )
    nothing = Latencies(0, None, None)
    flat = replace(found, usual=9, share=0.0, count=0, spikes=(), inside=nothing, outside=nothing)
    spiky, even = (document(Profile(10, 8, (), (), each, NO_PROMPTS)) for each in (found, flat))

    [spikes] = tables(spiky, "at s")
    assert ((1.5, 250.0, 9, 3, 50.0, None),) == spikes.rows
    assert [(found,)] == said(spiky, profile_phrases.calls_in_spikes)
    assert ([], []) == (tables(even, "at s"), said(even, profile_phrases.calls_in_spikes))
    for report in (spiky, even):
        assert [(3, 4)] == said(report, profile_phrases.in_flight)
    assert [(2, 10)] == said(spiky, profile_phrases.untimed)
    assert [(2,)] == said(spiky, profile_phrases.unknown_prompts)


def test_nothing_known() -> None:
    """A run without calls has a note in each section."""
    notes = [each.content for each in document(Profile(0, 0, (), (), None, NO_PROMPTS)).blocks() if isinstance(each, Note)]

    assert [profile_phrases.NO_CALL] * 2 == [each for each in notes if each == profile_phrases.NO_CALL]
    assert {profile_phrases.NO_ROLLOUT, profile_phrases.NO_PROMPT} < {each for each in notes if isinstance(each, str)}
