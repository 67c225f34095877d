"""A whole report: its headline and the order of its sections."""

from __future__ import annotations

import pytest

from pytest_agentbench.records import Rollout
from pytest_agentbench.reports import headline
from pytest_agentbench.reports.document import Section, say
from tests.findings import report
from tests.made_runs import gate_result, rule_result, run_of


@pytest.mark.parametrize(
    ("verdict", "tone"),
    [("PASS", "good"), ("FAIL", "bad"), ("INCONCLUSIVE", "open"), ("NOT MEASURED", "open"), ("NO GATE", "")],
)
def test_the_headline(verdict: str, tone: str) -> None:
    """The headline has the tone of the verdict, or none without a gate."""
    run = run_of(verdict=verdict)
    found = report(run).headline

    assert found is not None
    assert (tone, say(headline.headline, run)) == (found.tone, found.content)


def test_the_order_of_sections() -> None:
    """The sections are in their fixed order, from the outcome to the files."""
    run = run_of(Rollout("shop", "s", "default", 1, "agent_error"), gate=gate_result("FAIL", rule_result("x", "FAIL")))

    assert ["Outcome", "What to look at first", "Gate", "Suites", "Serving", "Setup", "Files"] == [
        each.title for each in report(run).sections
    ]


def test_the_title() -> None:
    """The title of a report has the id of the run."""
    assert "Run 20260304-050607" == report(run_of()).title
    assert all(isinstance(each, Section) for each in report(run_of()).sections)
