"""The section of hints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_agentbench.metrics.call_hints import HintUse
from pytest_agentbench.records import Rollout
from pytest_agentbench.reports import routing_phrases
from pytest_agentbench.reports.document import Document, Level, Table
from pytest_agentbench.reports.sections import hints
from pytest_agentbench.reports.view import RunView
from tests.findings import report, said
from tests.made_runs import run_of

ROLLOUT = Rollout("shop", "s0", "default", 1, "ok", started_at=1.0, started_ns=1, ended_ns=1_000_000_001)
USE = HintUse("", "", 320, 0.94, 12.0, 1.5, 30.0)


def tables(*uses: HintUse) -> list[Table]:
    section = hints.section(RunView(run_of(ROLLOUT, hints=uses), Path()))
    return [block for block in Document.of("", [section]).at(Level.FULL).blocks() if isinstance(block, Table)]


def test_each_role() -> None:
    """There are a sentence and a row for each role."""
    judge = replace(USE, role="judge", covered=None, tokens_error=None)
    found = report(run_of(ROLLOUT, hints=(USE, judge)), Level.FULL)
    (table,) = tables(USE, judge)

    assert [("agent", 320, "94.0 %", 12.0, 1.5, 30.0), ("judge", 320, "-", None, 1.5, 30.0)] == [*table.rows]
    assert [(USE,), (judge,)] == said(found, routing_phrases.hints_were)


@pytest.mark.parametrize(
    ("use", "sentence"),
    [
        (USE, "agent: 94.0 % of 320 calls within the hinted output tokens; mean errors 12.0 tokens, 1.50 remaining calls, 30 ms of pause"),
        (
            replace(USE, covered=None, tokens_error=None, next_error_ms=None),
            "agent: 320 calls with hints; mean errors 1.50 remaining calls",
        ),
        (HintUse("", "judge", 1, None, None, None, None), "judge: 1 call with hints"),
    ],
)
def test_sentences(use: HintUse, sentence: str) -> None:
    """A sentence names what is known."""
    assert sentence == routing_phrases.hints_were(use)


def test_arms() -> None:
    """With arms, there is one table with a column for them."""
    (table,) = tables(replace(USE, arm="static"), replace(USE, arm="learnt"))

    assert [("static", "agent"), ("learnt", "agent")] == [row[:2] for row in table.rows]


def test_nothing_without_hints() -> None:
    """A run without hints about calls has no such section."""
    assert None is hints.section(RunView(run_of(ROLLOUT), Path()))
