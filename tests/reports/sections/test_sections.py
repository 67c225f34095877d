"""A report as a whole: its headline and the sections in their order."""

from __future__ import annotations

import pytest

from pytest_agentbench.records import Rollout
from pytest_agentbench.reports import phrases
from pytest_agentbench.reports.document import Section, say
from tests.findings import report
from tests.made_runs import gate_result, rule_result, run_of


@pytest.mark.parametrize(
    ("verdict", "tone"),
    [("PASS", "good"), ("FAIL", "bad"), ("INCONCLUSIVE", "open"), ("NOT MEASURED", "open"), ("NO GATE", "")],
)
def test_the_headline(verdict: str, tone: str) -> None:
    """The answer of a run has a tone; one that nothing judged has none."""
    run = run_of(verdict=verdict)
    headline = report(run).headline

    assert headline is not None
    assert (tone, say(phrases.headline, run)) == (headline.tone, headline.content)


def test_the_order_of_sections() -> None:
    """What happened comes first, then what to look at, what the gate says, what was measured, and how to repeat it."""
    run = run_of(Rollout("shop", "s", "default", 1, "agent_error"), gate=gate_result("FAIL", rule_result("x", "FAIL")))

    assert ["Outcome", "What to look at first", "Gate", "Suites", "Serving", "Setup", "Files"] == [
        each.title for each in report(run).sections
    ]


def test_the_title() -> None:
    """A report is about a run by its id."""
    assert "Run 20260304-050607" == report(run_of()).title
    assert all(isinstance(each, Section) for each in report(run_of()).sections)
