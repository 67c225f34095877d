"""The section of engines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_agentbench.backends.telemetry.engine_calls import EngineCalls
from pytest_agentbench.backends.telemetry.engine_use import EngineUse
from pytest_agentbench.records import Rollout
from pytest_agentbench.reports import routing_phrases
from pytest_agentbench.reports.document import Document, Level, Table, plain
from pytest_agentbench.reports.sections import engines
from pytest_agentbench.reports.view import RunView
from tests.findings import facts, report, said
from tests.made_runs import run_of

HERE = Path()
ROLLOUT = Rollout("shop", "s0", "default", 1, "ok", started_at=1.0, started_ns=1, ended_ns=1_000_000_001)
TWO = (EngineCalls("engine", 0, "vllm", 30), EngineCalls("engine", 1, "vllm", 10))
USE = EngineUse("", TWO, {"a": 30, "b": 9}, tap_calls=38, uncertain_calls=1, sessions=14, traced=12, stayed=5)


def tables(*uses: EngineUse, level: Level = Level.FULL) -> list[Table]:
    section = engines.section(RunView(run_of(ROLLOUT, engines=uses), HERE))
    return [block for block in Document.of("", [section]).at(level).blocks() if isinstance(block, Table)]


def test_calls_of_each_engine() -> None:
    """There are a row for each engine, and sentences about sessions and calls. The first page has none of them."""
    found = report(run_of(ROLLOUT, engines=(USE,)), Level.FULL)
    (table,) = tables(USE)

    assert [("engine[0]", 30, "75.0 %"), ("engine[1]", 10, "25.0 %")] == [row[:3] for row in table.rows]
    assert [(USE,)] == said(found, routing_phrases.calls_at_engines) == said(found, routing_phrases.sessions_stayed)
    assert [] == said(report(run_of(ROLLOUT, engines=(USE,)), Level.FIRST_PAGE), routing_phrases.calls_at_engines)
    assert "40 calls at the engines, 38 answered calls at the tap, and 1 that an engine may have answered" in plain(
        routing_phrases.calls_at_engines(USE)
    )
    assert "5 of 12 sessions with more than one call stayed on one engine" == routing_phrases.sessions_stayed(USE)


@pytest.mark.parametrize("level", [Level.FIRST_PAGE, Level.SUMMARY, Level.FULL, Level.VERBOSE])
def test_warnings_are_everywhere(level: Level) -> None:
    """A warning is on the first page, in comments and in reports, also if no engine has counters."""
    warned = replace(USE, engines=(), named={}, warnings=("all 9 sessions went to one of 2 engines",))

    found = report(run_of(ROLLOUT, engines=(warned,)), level)
    assert [(warned, warned.warnings[0])] == said(found, routing_phrases.engine_warning)
    assert all(fact.spare < 0 for fact in facts(found, "engines"))  # On a first page that is full, another block is left out.


@pytest.mark.parametrize("uses", [(), (replace(USE, engines=TWO[:1], named={}),)], ids=["nothing counted", "one engine"])
def test_nothing_without_several_engines(uses: tuple[EngineUse, ...]) -> None:
    """A run without counts, or on a single engine, has no such section."""
    assert None is engines.section(RunView(run_of(ROLLOUT, engines=uses), HERE))


def test_engines_that_only_answers_name() -> None:
    """Without counters, the engines are those that the answers name. If they name none, the sessions that stayed are unknown."""
    (table,) = tables(replace(USE, engines=()))
    unnamed = replace(USE, named={}, traced=0, stayed=0)

    assert [("a", 30, "76.9 %"), ("b", 9, "23.1 %")] == [row[:3] for row in table.rows]
    assert ("-", "the answers do not name the engine, so it is not known which sessions stayed on one") == (
        routing_phrases.stayed(unnamed),
        routing_phrases.sessions_stayed(unnamed),
    )


def test_second_requests() -> None:
    """Second requests of speculative prefills are named beside the calls. With arms, they are a column if an arm has some."""
    prefilled = replace(USE, second_requests=2)
    (arms,) = tables(replace(USE, arm="a"), replace(prefilled, arm="b"))

    assert "40 calls at the engines, 38 answered calls at the tap and 2 second requests of speculative prefills, and 1 that" in plain(
        routing_phrases.calls_at_engines(prefilled)
    )
    assert [(38, 0), (38, 2)] == [(row[3], row[-1]) for row in arms.rows]


def test_arms() -> None:
    """Each arm has a row with the calls of its engines. The row of each engine is only in the report."""
    behind = replace(USE, arm="b", engines=(*TWO, EngineCalls("worker", 0, "dynamo", 40, restarted=True)))
    (arms,) = tables(replace(USE, arm="a"), behind)
    _, each = tables(replace(USE, arm="a"), behind, level=Level.VERBOSE)

    assert [("a", 40, 38, 1), ("b", 40, 38, 1)] == [(row[0], *row[2:5]) for row in arms.rows]
    assert ["30, 10", "30, 10; 40"] == [routing_phrases.calls_of_engines(use) for use in (USE, behind)]
    assert [("a", "engine[0]"), ("a", "engine[1]"), ("b", "engine[0]"), ("b", "engine[1]"), ("b", "worker[0]")] == [
        row[:2] for row in each.rows
    ]
    assert "dynamo, was restarted, so calls may be missing" == routing_phrases.engine_kind(behind.engines[2])
