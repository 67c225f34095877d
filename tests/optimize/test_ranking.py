"""The ranking of settings: ratios to the default settings, the penalty for lost quality, and the gain by selection alone."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pytest_agentbench.gate.evidence import CallTimes, Trial
from pytest_agentbench.optimize.ranking import ComparedSettings, RankingEvidence, RankingTerms, evidence_of, log_ratios, selection_gain
from pytest_agentbench.records import SHARE

TERMS = RankingTerms(("rollout.p50",), "tsq", SHARE)


def trial(scenario: str, ms: float, score: float = 1.0, status: str = "ok") -> Trial:
    calls = (CallTimes({"ttft": ms / 10}, 5, failed=False),)
    scores = {"tsq": score} if status == "ok" else {}
    return Trial("shop", "shop", scenario, 1, status, scores=scores, duration_ms=ms, calls=calls)


def test_ratios_are_paired_by_scenario() -> None:
    """Each ratio is of two rollouts of the same scenario, so that long scenarios count as much as short ones."""
    compared = ComparedSettings([trial("a", 100), trial("b", 1000)], [trial("b", 900), trial("a", 80), trial("c", 5)])

    assert [math.log(0.9), math.log(0.8)] == pytest.approx(log_ratios(compared, "rollout.p50"))
    assert [math.log(0.9), math.log(0.8)] == pytest.approx(log_ratios(compared, "ttft.p90"))


def test_rollouts_without_a_measurement_are_no_pairs() -> None:
    """An infra_error is neither fast nor slow, and not a bad score."""
    base = [trial(each, 100) for each in "abc"]
    new = [trial("a", 100), trial("b", 50), trial("c", 1, status="infra_error")]

    found = evidence_of([ComparedSettings(base, new)], TERMS)

    assert found is not None
    assert (2, 0.0) == (found.pairs, found.loss)
    assert math.log(0.5) / 2 == pytest.approx(found.ratios["rollout.p50"])
    assert evidence_of([ComparedSettings(base[:1], new[:1])], TERMS) is None


def test_quality_is_a_penalty() -> None:
    """A loss of quality beyond its standard error is added to the ratio. A gain, or a loss within the error, changes nothing."""
    known = RankingEvidence({"rollout.p50": -0.1}, {"rollout.p50": 0.01}, 0.2, 0.05, 20)

    assert [0.05] == pytest.approx(known.values(TERMS))
    assert [0.2] == pytest.approx(known.values(replace(TERMS, weight=2.0)))
    assert [-0.1] == replace(known, loss=0.04).values(TERMS)
    assert [-0.1] == replace(known, loss=-0.3).values(TERMS)


def test_quality_may_be_an_objective() -> None:
    """If quality is an objective of its own, it is no penalty of the others."""
    known = RankingEvidence({"rollout.p50": -0.1}, {"rollout.p50": 0.01}, 0.2, 0.05, 20)

    assert [-0.1, 0.2] == known.values(replace(TERMS, objectives=("rollout.p50", "quality")))


def test_selection_alone_gains() -> None:
    """The best of twenty equal settings looks faster by 1.87 standard errors, and a single one by none."""
    assert -0.0187 == pytest.approx(selection_gain([0.01] * 20), abs=1e-4)
    assert 0.0 == selection_gain([0.01])
