"""Conditions for a run to become a baseline, and to replace a better one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.gate.baselines import Promotion, ScoreChange, baseline_warnings, check_reason, plan_promotion, unfit_reasons
from pytest_agentbench.gate.evidence import Evidence, Trial
from pytest_agentbench.gate.usable_numbers import missing_scores
from pytest_agentbench.records import Json
from pytest_agentbench.runs.provenance import Git
from pytest_agentbench.runs.run_file import Plan, Run
from tests.gate.evidences import evidence, trial
from tests.gate.test_ab import both
from tests.gate.test_ab import compared as two_arms
from tests.made_runs import SCALES, run_of


def run(failure: str = "", not_run: int = 0, dirty: bool | None = False, resume: str | None = None) -> Run:
    """Returns a complete run of four rollouts. `dirty` is None outside of git."""
    base = run_of(id="now", plan=Plan(4, 4 - not_run, not_run), resume=resume)
    git = None if dirty is None else Git("c", dirty, None)
    return replace(base, backend=replace(base.backend, failure=failure), environment=replace(base.environment, git=git))


def of(*scores: float, **facts: Any) -> Evidence:
    return evidence([trial(number, score) for number, score in enumerate(scores)], **facts)


def promotion(new: Evidence, old: Evidence | None) -> Promotion:
    return Promotion("shop", Path("shop.jsonl"), new, old)


@pytest.mark.parametrize(
    ("told", "trials", "found"),
    [
        ({}, [trial(1), trial(2)], []),
        ({"failure": "engine died"}, [trial(1)], ["engine died"]),
        ({"not_run": 3}, [trial(1)], ["3 of 4 planned rollouts were not run"]),
        (
            {"not_run": 2, "resume": "pytest --agentbench-resume=now"},
            [trial(1), trial(2, None, status="cancelled")],
            ["3 of 4 planned rollouts were not run (resume with pytest --agentbench-resume=now)"],
        ),
        ({}, [trial(1, None, status="agent_error")], ["no rollout ended as ok or limit"]),
        ({}, [trial(1), trial(2, None, status="infra_error")], ["1 of 2 rollouts ended as infra_error, more than 2 %"]),
        ({}, [trial(1), trial(2, unscored=("tsq",))], [missing_scores(1, "tsq")]),
    ],
)
def test_reasons_why_a_run_is_unfit(told: Json, trials: list[Trial], found: list[str]) -> None:
    """A run with lost, failed or missing results cannot be a baseline. Each reason is named."""
    assert found == [*unfit_reasons(run(**told), evidence(trials), "shop")]


def test_an_unfit_run_is_refused(tmp_path: Path) -> None:
    """If a run is unfit, the error names the run, the suite and each reason."""
    with pytest.raises(ConfigError, match=r"now cannot be a baseline for shop: engine died; no rollout ended as ok or limit"):
        plan_promotion(run(failure="engine died"), evidence([]), "shop", tmp_path / "shop.jsonl")


@pytest.mark.parametrize(
    ("told", "facts", "found"),
    [
        ({}, {}, []),
        ({"dirty": None}, {}, []),
        ({"dirty": True}, {}, ["the working tree of the run had uncommitted changes, so its commit does not identify the code"]),
        (
            {},
            {"stopwatch": "client-saturated"},
            ["the client was saturated: rules about timings will be INCONCLUSIVE against this baseline"],
        ),
        ({}, {"scenarios": {"shop": 3}}, ["2 of 3 scenarios ran: runs of the whole suite will be INCONCLUSIVE against this baseline"]),
    ],
)
def test_a_poor_baseline(told: Json, facts: Json, found: list[str]) -> None:
    """A poor baseline causes a warning about the rules that will be INCONCLUSIVE."""
    assert found == [*baseline_warnings(run(**told), of(1.0, 1.0, **facts), "shop")]


def test_a_first_baseline() -> None:
    """Without an old baseline, no reason is needed."""
    first = promotion(of(0.5, 1.0), None)

    check_reason([first], run(), "")
    assert ScoreChange("shop", "tsq", None, 0.75, 2, SCALES["tsq"]) == first.changes[0]


@given(st.floats(0.01, 1), st.floats(0.01, 1))
def test_a_lower_mean_needs_a_reason(was: float, now: float) -> None:
    """A lower mean needs a reason, even if the drop can be chance, because drops add up."""
    plan = promotion(of(now, now), of(was, was))
    check_reason([plan], run(), "the data set is harder")

    if was - now > 1e-9:
        with pytest.raises(
            ConfigError,
            match=r"the new baseline .*shop\.jsonl is worse than the old one for shop tsq; if that is intended, give the reason",
        ):
            check_reason([plan], run(), "")
    else:
        check_reason([plan], run(), "")


def test_a_useless_baseline_needs_a_reason() -> None:
    """A run in which every test failed, or whose main score has its worst value, needs a reason. Some failed tests only cause a warning."""
    plan, tests = promotion(of(0.5, 1.0), None), run().tests
    all_failed, some_failed = (replace(run(), tests=replace(tests, passed=passed, failed=3)) for passed in (0, 7))

    for bad, measured, why in (
        (all_failed, plan, "now is a poor baseline: all 3 tests failed, so almost any later run passes against it; if that is intended"),
        (run(), promotion(of(0.0, 0.0), None), "now is a poor baseline: shop tsq is 0, and no later run can be worse; if that is intended"),
    ):
        with pytest.raises(ConfigError, match=why):
            check_reason([measured], bad, "")
        check_reason([measured], bad, "the agent is a stub")
    check_reason([plan], some_failed, "")
    assert ["3 of 10 tests of the run failed"] == [*baseline_warnings(some_failed, of(1.0, 1.0), "shop")]


def test_a_run_with_arms_is_refused(tmp_path: Path) -> None:
    """A run that compares arms cannot be a baseline, because later runs do not have its arms."""
    with pytest.raises(ConfigError, match=r"it compares arms .*; promote a run without arms"):
        plan_promotion(replace(run(), ab=two_arms(*both())), of(1.0), "shop", tmp_path / "shop.jsonl")


def test_less_may_be_better() -> None:
    """For a score that counts mistakes, higher is worse."""
    more = evidence([trial(1, scores={"tsq": 1.0, "repeated": 2.0})])

    assert [("repeated", True)] == [(each.score, each.worse) for each in promotion(more, of(1.0)).changes if each.worse]
    assert [] == [each for each in promotion(of(1.0), more).changes if each.worse]


def test_a_missing_variant_needs_a_reason() -> None:
    """A variant or a score that the new run lacks needs a reason, like a lower mean."""
    whole = evidence([trial(1), replace(trial(1), group="shop-hot")])

    with pytest.raises(ConfigError, match="has no results of shop-hot tsq, shop-hot repeated, which the old one has; if"):
        check_reason([promotion(of(1.0), whole)], run(), "")


def test_other_suites_are_not_checked() -> None:
    """Only the promoted suite is checked."""
    other = evidence([trial(1), replace(trial(1, 0.0), suite="bank", group="bank")])

    assert {"shop"} == {each.group for each in promotion(other, None).changes}
    assert ["no rollout ended as ok or limit"] == [*unfit_reasons(run(), evidence([replace(trial(1), suite="bank")]), "shop")]
