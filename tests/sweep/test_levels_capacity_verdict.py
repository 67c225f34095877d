"""Verdicts on the levels of a sweep."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_agentbench.gate.evidence import Trial
from pytest_agentbench.metrics.other_tools.nat import Throughput
from pytest_agentbench.records import Scale, scale_in
from pytest_agentbench.stats.decisions import FAIL, INCONCLUSIVE, PASS
from pytest_agentbench.sweep.levels import Criteria, Sweep, SweepLevel, judgements
from tests.frames import scenarios_of
from tests.gate.evidences import trial
from tests.made_runs import SCALES, run_of

GOOD = [trial(name) for name in range(200)]
LOST = [trial(name, None, status="infra_error", calls=()) for name in range(200, 203)]
SLOW = [trial(name, ttft=900.0) for name in range(200)]


def swept(*levels: list[Trial], score: str = "tsq") -> Sweep:
    made = tuple(SweepLevel(concurrency, scenarios_of(), trials, Throughput()) for concurrency, trials in enumerate(levels, 1))
    return Sweep(run_of(), "shop", score, scale_in(SCALES, score), made, {})


@pytest.mark.parametrize(
    ("levels", "slo", "verdicts"),
    [
        ((GOOD, GOOD), {"ttft": 500.0}, [PASS, PASS]),
        ((GOOD, SLOW), {"ttft": 500.0}, [PASS, FAIL]),
        ((GOOD, SLOW), {}, [PASS, PASS]),
        (
            (GOOD + LOST, GOOD),
            {},
            [INCONCLUSIVE, PASS],
        ),  # the smallest level is inconclusive too, because of lost rollouts
        ((GOOD, GOOD + LOST), {}, [PASS, INCONCLUSIVE]),
        ((GOOD, SLOW + LOST), {"ttft": 500.0}, [PASS, FAIL]),  # a level that fails does so whatever was lost
        ((GOOD, LOST), {}, [PASS, INCONCLUSIVE]),
    ],
)
def test_levels(levels: tuple[list[Trial], ...], slo: dict[str, float], verdicts: list[str]) -> None:
    """A level with lost rollouts never passes. Without objectives, any speed is good enough."""
    assert verdicts == [each.verdict for each in judgements(swept(*levels), Criteria(slo))]


def test_a_suite_without_scores() -> None:
    """For a suite without scores, failed rollouts count as lost."""
    assert [INCONCLUSIVE, PASS] == [each.verdict for each in judgements(swept(GOOD + LOST, GOOD, score=""), Criteria({}))]


def test_a_score_whose_lower_values_are_better() -> None:
    """A level with more mistakes fails, one with fewer passes."""
    few, many = ([trial(name, value) for name in range(200)] for value in (1.0, 9.0))
    marks = Scale("lower", 0.0, 10.0, declared=True)

    for levels, verdict in (((few, many), FAIL), ((many, few), PASS)):
        sweep = replace(swept(*levels), scale=marks)
        assert verdict == judgements(sweep, Criteria({}))[1].verdict
