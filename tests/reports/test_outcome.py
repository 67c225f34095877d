"""The headline of a run: one answer with its colour, in the terminal and on the page."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_agentbench.records import Rollout, Score
from pytest_agentbench.reports.firstpage import rows
from pytest_agentbench.reports.outcome import headline
from pytest_agentbench.reports.page.first_screen import first_screen
from tests.made_runs import gate_result, rule_result, run_of

RULE = gate_result("PASS", rule_result("tsq.mean >= 0.8 of run", "PASS", 1.0))


@pytest.mark.parametrize(
    ("verdict", "colour", "mark"),
    [
        ("PASS", "green", "verdict good"),
        ("FAIL", "red", "verdict bad"),
        ("INCONCLUSIVE", "yellow", "verdict open"),
        ("NOT MEASURED", "yellow", "verdict open"),
        ("NO GATE", "", "verdict"),
    ],
)
def test_colours(verdict: str, colour: str, mark: str) -> None:
    """An answer has a colour, in the terminal and on the page; a run that nothing judged has none."""
    run = run_of(verdict=verdict)

    assert colour == next(rows(run, "reports/x")).colour
    assert f'<h1 class="{mark}">' in first_screen([run])


def test_a_suite_without_a_rule_is_named() -> None:
    """A PASS names the suites that no rule and no threshold was about."""
    run = run_of(Rollout("shop", "s", "default", 1, "ok", scores={"tsq": Score(1.0)}), gate=RULE)
    silent = replace(run.suites["shop"], thresholds={"tsq.mean": 0.5})
    both = replace(run, suites={**run.suites, "hle": silent})

    assert () == headline(run).notes
    assert ("no rule for hle",) == headline(both).notes
    assert ["shop tsq 1.000", "hle tsq 1.000"] == [text.partition(" [")[0].removesuffix(" (no interval)") for text in headline(both).means]
    assert ("1 of 3 planned rollouts (33.3 %) were not run",) == headline(run).shares


def test_many_suites() -> None:
    """A headline names three suites, and counts the others."""
    run = run_of()
    many = replace(run, suites={f"s{number}": run.suites["shop"] for number in range(5)})

    assert "and 2 more suites" == headline(many).means[3]
