"""The section of KV cache events."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pytest_agentbench.backends.telemetry.kv_cache import KvCacheUse
from pytest_agentbench.records import Rollout
from pytest_agentbench.reports import routing_phrases
from pytest_agentbench.reports.document import Document, Level, Table
from pytest_agentbench.reports.sections import kv_cache
from pytest_agentbench.reports.view import RunView
from tests.findings import report, said
from tests.made_runs import run_of

ROLLOUT = Rollout("shop", "s0", "default", 1, "ok", started_at=1.0, started_ns=1, ended_ns=1_000_000_001)
USE = KvCacheUse("worker", 0, 16, 1740, 272, 1231, 0, 512, 0, calls=31, prompt_tokens=64_000, hit_tokens=40_000, joined=1566)
SILENT = KvCacheUse("worker", 1, 16, 10, 0, 0, 0, 10, 0, calls=0, prompt_tokens=0, hit_tokens=0, joined=0)


def test_each_engine() -> None:
    """There are a sentence about all engines and a row for each. Hits are unknown if no call names the engine."""
    found = report(run_of(ROLLOUT, kv_cache=(USE, SILENT)), Level.FULL)
    section = kv_cache.section(RunView(run_of(ROLLOUT, kv_cache=(USE, SILENT)), Path()))
    (table,) = [block for block in Document.of("", [section]).at(Level.FULL).blocks() if isinstance(block, Table)]

    assert [
        ("worker[0]", 1740, 272, 1231, 512, 2500, "62.5 %", "90.0 %"),
        ("worker[1]", 10, 0, 0, 10, None, "-", "0.0 %"),
    ] == [*table.rows]
    assert [((USE, SILENT),)] == said(found, routing_phrases.cache_events)
    assert "1,750 blocks stored, 272 of them for at least the second time, 1,231 removed; calls hit 2,500" == (
        routing_phrases.cache_events((USE, SILENT))
    )
    assert routing_phrases.cache_events((SILENT,)).endswith("so hits are not known")


def test_lost_events_are_on_the_first_page() -> None:
    """If messages of an engine did not arrive, the first page says so. Otherwise it has nothing about KV caches."""
    lost = replace(USE, lost=3)

    assert [(lost,)] == said(report(run_of(ROLLOUT, kv_cache=(lost, SILENT)), Level.FIRST_PAGE), routing_phrases.lost_events)
    assert [] == said(report(run_of(ROLLOUT, kv_cache=(USE,)), Level.FIRST_PAGE), routing_phrases.cache_events)


def test_nothing_without_events() -> None:
    """A run whose engines publish nothing has no such section."""
    assert None is kv_cache.section(RunView(run_of(ROLLOUT), Path()))
