"""Comparisons of several runs with one: verdicts are corrected for the number of runs, and values that are not comparable are left out."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from pytest_agentbench.gate.evidence import Evidence
from pytest_agentbench.gate.run_comparison import (
    RunComparison,
    comparison_warnings,
    distinct,
    flips,
    latency_against,
    left_out,
    passes_against,
    score_against,
)
from pytest_agentbench.gate.run_pair import ComparedRun
from pytest_agentbench.records import Scale
from pytest_agentbench.runs.results import Means, Passes, PassMean
from pytest_agentbench.stats.decisions import FAIL, INCONCLUSIVE
from tests.gate.evidences import HASHES, evidence, trial
from tests.gate.test_run_pair import run
from tests.made_runs import mean


def several(*runs: ComparedRun) -> RunComparison:
    return RunComparison(tuple("abcdefghijkl"[: len(runs)]), runs)


def passing(found: Evidence, **changes: Any) -> ComparedRun:
    """Returns a run whose rollouts pass at a score of 0.5."""
    made = run(found, **changes)
    rate = PassMean(**vars(mean()), k=1)
    passes = Passes("tsq", 0.5, (rate,), (rate,), 0, ())
    suites = {name: replace(suite, scores={"tsq": Means(mean(), mean())}, passes=passes) for name, suite in made.facts.suites.items()}
    return ComparedRun(replace(made.facts, suites=suites), made.evidence)


def noisy(shift: float = 0.0, seed: int = 1) -> Evidence:
    random = Random(seed)
    return evidence(trial(name, float(random.random() < 0.7 - shift), number=number) for name in range(40) for number in (1, 2, 3))


def test_more_runs_have_wider_intervals() -> None:
    """A comparison of two runs has a wider interval if two more runs are compared, by Holm's procedure."""
    base, other = run(noisy()), run(noisy(seed=2))
    (alone,) = score_against(several(base, other), "shop", "tsq")
    beside, *_ = score_against(several(base, other, run(noisy(seed=3)), run(noisy(seed=4))), "shop", "tsq")

    assert alone.decision is not None
    assert beside.decision is not None
    assert 0.95 == alone.decision.confidence
    assert pytest.approx(1 - 0.05 / 3) == beside.decision.confidence
    assert alone.decision.estimate == beside.decision.estimate


def test_scores_against_the_reference() -> None:
    """A run that is much worse than the reference is reported as worse, whatever else is compared. An equal run is not."""
    runs = several(passing(noisy()), passing(noisy(0.5)), passing(noisy(seed=7)))

    for found in (score_against(runs, "shop", "tsq"), passes_against(runs, "shop")):
        assert [FAIL, INCONCLUSIVE] == [each.decision and each.decision.verdict for each in found]


def test_values_that_are_not_compared() -> None:
    """Scores by other scorers, suites of one run, and speeds under other conditions are not compared. A sentence says why."""
    apart = evidence(trial(number, content={**HASHES, "scorers": {"tsq": "x"}}) for number in range(30))
    runs = several(run(noisy()), run(apart, concurrency=4), run(noisy(), suites=("store",)))

    found = score_against(runs, "shop", "tsq")
    assert [None, None] == [each.decision for each in found]
    assert ["tsq is from different versions of the scorer", "only one of the runs has the suite"] == [each.why for each in found]
    assert [None] == [each.decision for each in latency_against(runs, "ttft", 50)][:1]
    assert [
        "speeds of b are not compared with those of a: different numbers of rollouts in flight: 8 and 4",
        "shop tsq of b is not compared with a: tsq is from different versions of the scorer",
        "shop tsq of c is not compared with a: only one of the runs has the suite",
        "store tsq of c is not compared with a: only one of the runs has the suite",
    ] == [*comparison_warnings(runs)]


def test_a_suite_that_neither_run_has() -> None:
    """A suite that only a third run has causes no warning about the other two runs."""
    runs = several(run(noisy()), run(noisy()), run(noisy(), suites=("shop", "store")))

    assert ["store tsq of c is not compared with a: only one of the runs has the suite"] == [*comparison_warnings(runs)]
    assert ["neither of the runs has the suite", "only one of the runs has the suite"] == [
        each.why for each in score_against(runs, "store", "tsq")
    ]


def test_latencies_against_the_reference() -> None:
    """A run that is twice as slow on the same machine, under the same conditions, is reported as slower."""
    base, slow = (evidence(trial(number, ttft=100.0 * factor + Random(number).randrange(30)) for number in range(60)) for factor in (1, 2))

    (same, slower) = latency_against(several(run(base), run(base), run(slow)), "ttft", 50)

    assert slower.decision is not None
    assert same.decision is not None
    assert (INCONCLUSIVE, FAIL) == (same.decision.verdict, slower.decision.verdict)


def test_speeds_are_paired() -> None:
    """A latency ratio uses the scenarios that both runs have with equal content. Too few of them decide nothing."""
    changed = {**HASHES, "scenario": "other"}
    old = run(evidence([trial(number, ttft=100.0) for number in range(30)]))
    slow = [trial(number, ttft=200.0) for number in range(25)]
    new = run(evidence([*slow, *(trial(number, ttft=9000.0, content=changed) for number in range(25, 30))]))

    (found,), (few,) = (latency_against(several(*pair), "ttft", 50) for pair in ((old, new), (run(), run())))

    assert found.decision is not None
    assert few.decision is not None
    assert (25, FAIL) == (found.decision.n, found.decision.verdict)
    assert pytest.approx(2.0) == found.decision.estimate
    assert few.decision.reason.startswith("p50 needs 20 independent rollouts")


def test_flips() -> None:
    """Only differing scenarios are listed, flipped ones first. A run has no cell for a scenario with other content than the reference."""
    changed = {**HASHES, "scenario": "other"}
    base = evidence([trial("same"), trial("moved", 0.9), trial("flipped", 1.0), trial("changed")])
    new = evidence([trial("same"), trial("moved", 0.7), trial("flipped", 0.2), trial("changed", 0.0, content=changed)])
    runs = several(passing(base), passing(new))

    found = flips(runs, "shop", "tsq")

    assert ["flipped", "moved"] == [each.scenario for each in found]
    assert [(1, 1), (0, 1)] == [(cell.passed, cell.trials) for cell in found[0].cells if cell]


def test_more_trials_do_not_make_a_flip() -> None:
    """A scenario that always passes does not differ if its means differ only by rounding."""
    base = evidence([trial("same", 0.8), trial("lower", 0.8)])
    new = evidence(trial(name, score, number=number) for name, score in (("same", 0.8), ("lower", 0.7)) for number in (1, 2, 3))
    runs = several(passing(base), passing(new))

    assert ["lower"] == [each.scenario for each in flips(runs, "shop", "tsq")]


def test_left_out() -> None:
    """Scenarios that are not compared are counted by reason."""
    changed = {**HASHES, "scenario": "other"}
    base = evidence([trial("lower"), trial("changed"), trial("unmeasured"), trial("gone")])
    new = evidence([trial("lower", 0.2), trial("changed", content=changed), trial("unmeasured", None, status="infra_error"), trial("new")])
    runs = several(passing(base), passing(new))

    assert {"only_new": 1, "only_base": 1, "changed": 1, "unmeasured": 1} == left_out(runs, runs.runs[1], "shop")


def test_a_suite_of_the_reference_alone() -> None:
    """A suite that only the reference has is named, like one that only another run has."""
    apart = several(run(suites=("store",)), run())

    assert "store tsq of b is not compared with a: only one of the runs has the suite" in comparison_warnings(apart)


def test_goodput_under_other_objectives() -> None:
    """If runs have different latency objectives, a sentence says so."""
    old, new = run(), run()
    new = replace(new, facts=replace(new.facts, settings=replace(new.facts.settings, slo={"ttft": 500.0})))

    assert ["goodput of b and a cannot be compared: their latency objectives differ"] == [*comparison_warnings(several(old, new))]


def test_nothing_measured() -> None:
    """A run whose backend failed still has the same scenarios. The reason is that none of them was measured."""
    dead = run(evidence(trial(name, None, status="infra_error") for name in range(3)))
    (found,) = score_against(several(run(), dead), "shop", "tsq")

    assert (None, "no scenario was measured in both runs") == (found.decision, found.why)


def test_distinct_names() -> None:
    """Runs with the same name in different directories get distinct names."""
    assert ("a", "b", "a (2)") == distinct(["a", "b", "a"])


def test_how_many_scenarios_a_comparison_rests_on() -> None:
    """If runs have different scenarios, a sentence has the number of common ones on which they are compared."""
    every, few = (passing(evidence(trial(name, number=number) for name in range(count) for number in (1, 2))) for count in (40, 10))

    assert [
        "shop of b is compared with a on the 10 scenarios that both have (a has 40, b 10); the means are over all scenarios of each run"
    ] == [*comparison_warnings(several(every, few))]
    assert [] == [*comparison_warnings(several(every, every))]


def test_a_score_on_another_scale() -> None:
    """Runs whose scorers declare another direction or range are not compared."""
    other = {"shop": {"tsq": Scale("lower", 0.0, None, declared=True)}}
    old, new = run(noisy()), run(replace(noisy(), facts=replace(noisy().facts, scales=other)))

    why = "tsq has different scales: higher is better, between 0 and 1; now lower is better, 0 or more"
    assert [(None, why)] == [(each.decision, each.why) for each in score_against(several(old, new), "shop", "tsq")]


def test_agent_errors_without_a_worst_value() -> None:
    """A score without a worst value is not compared if a run has agent errors. With a worst value, errors count as that."""
    crashed = evidence([*noisy().groups["shop"], trial("crashed", None, status="agent_error")])
    loose = replace(crashed, facts=replace(crashed.facts, scales={}))
    plain = replace(noisy(), facts=replace(noisy().facts, scales={}))

    (with_worst,) = score_against(several(run(noisy()), run(crashed)), "shop", "tsq")
    assert with_worst.decision is not None
    (without,) = score_against(several(run(plain), run(loose)), "shop", "tsq")
    assert "1 of 121 rollouts ended as agent_error" in without.why
