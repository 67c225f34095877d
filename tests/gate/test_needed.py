"""What an INCONCLUSIVE rule needs for a verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_agentbench.gate.needed import Needed, needed
from pytest_agentbench.records import MOST_TRIALS, Rollout, Score
from pytest_agentbench.runs.run_file import Run
from tests.made_runs import rule_result, run_of

REASON = "only 2 of 3 scenarios were measured"


def run(scenarios: int = 3, per_hour: float | None = 60.0, size: int = 3) -> Run:
    """Returns a run of the shop with two trials of each scenario, at a speed of a rollout each minute."""
    found = run_of(
        *(
            Rollout("shop", f"s{number}", "default", trial, "ok", scores={"tsq": Score(0.5)})
            for number in range(scenarios)
            for trial in (1, 2)
        )
    )
    suite = found.suites["shop"]
    performance = replace(found.performance, metrics={**found.performance.metrics, "rollouts_per_hour": per_hour})
    return replace(found, performance=performance, suites={"shop": replace(suite, dataset=replace(suite.dataset, size=size))})


def open_rule(text: str = "tsq.mean >= 0.4", **changes: Any) -> Any:
    """Returns an undecided rule: 0.5 [0.3, 0.7] against 0.4. Four times the information halves the interval."""
    values = {"threshold": 0.4, "low": 0.3, "high": 0.7, "n": 3, "trials": (6, 0), "of": "suite", **changes}
    return replace(rule_result(text, "INCONCLUSIVE", 0.5), **values)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Needed(trials=6, total=8, rollouts=18, minutes=18.0)),
        ({"threshold": 0.6}, Needed(trials=6, total=8, rollouts=18, minutes=18.0)),
        ({"of": "population"}, Needed(scenarios=9, rollouts=18, minutes=18.0)),
        ({"threshold": 0.5}, Needed(trials=MOST_TRIALS - 1)),
        ({"low": None, "high": None}, None),
        ({"verdict": "PASS"}, None),
        ({"reason": "there is no baseline"}, None),
    ],
    ids=["limit", "other side", "population", "at the threshold", "no interval", "decided", "a reason"],
)
def test_a_limit(changes: dict[str, Any], expected: Needed | None) -> None:
    """The squared width of the interval falls with the number of trials or scenarios; the time is that at the speed of the run."""
    assert expected == needed(open_rule(**changes), run())


def test_a_baseline() -> None:
    """The trials of the baseline stay as they are, so the run needs more than without one, or no number is enough."""
    rule = open_rule("tsq.mean >= -0.1 vs baseline", threshold=0.4)

    # Information is 1 / (1/2 + 1/18) = 1.8, and 7.2 = 1 / (1/12 + 1/18) is needed.
    assert Needed(trials=10, total=12, rollouts=30, minutes=30.0) == needed(replace(rule, trials=(6, 54)), run())
    assert Needed(trials=MOST_TRIALS, baseline=True) == needed(replace(rule, trials=(6, 6)), run())


def test_a_margin_that_is_too_small() -> None:
    """If no result passes with so few trials, the run needs as many as the margin takes."""
    rule = open_rule(
        "tsq.mean >= -0.1 vs baseline", threshold=-0.1, low=None, high=None, floor=0.3, trials=(6, 600), reason="no score differs"
    )

    found = needed(rule, run())

    assert found is not None
    assert (5, 15) == (found.trials, found.rollouts)


def test_a_part_of_a_suite() -> None:
    """If fewer than 80 % of the scenarios were measured, the run needs the scenarios up to there."""
    rule = open_rule("tsq.mean >= 0.6 of run", low=None, high=None, of="run", reason=REASON)

    assert Needed(scenarios=5, rollouts=10, minutes=10.0) == needed(rule, run(size=10))
    assert Needed(scenarios=5, rollouts=10) == needed(rule, run(size=10, per_hour=None))
