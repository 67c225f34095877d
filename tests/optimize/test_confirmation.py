"""The confirmation: what it calls better, what it refuses, and what it cannot tell."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from pytest_agentbench.gate.evidence import RunFacts, Trial
from pytest_agentbench.optimize.confirmation import CONFIRMED, OPEN, REFUTED, Confirmation, ConfirmationTerms, confirm
from pytest_agentbench.optimize.ranking import ComparedSettings
from pytest_agentbench.records import SHARE
from pytest_agentbench.runs.results import ArmFacts

TERMS = ConfirmationTerms("shop", "rollout.p50", "tsq", SHARE, margin=0.05)
BLOCKS, SIZE, TRIALS = 10, 4, 3


def rollouts(faster: float, score: float, *, place: int, status: str = "ok") -> Iterator[Trial]:
    """Yields the rollouts of one arm in alternating blocks. `place` is 0 for the arm that begins."""
    noise = random.Random(place)
    for trial in range(TRIALS):
        for block in range(BLOCKS):
            for each in range(SIZE):
                turn = (place + block) % 2  # AB BA AB BA
                began = ((trial * BLOCKS + block) * 2 + turn) * SIZE + each
                ms = 100 * (1 - faster) * noise.uniform(0.97, 1.03)
                yield Trial(
                    "shop",
                    f"shop-{'new' if place else 'base'}",
                    f"s{block}-{each}",
                    trial + 1,
                    status if each == 0 else "ok",
                    {"scenario": "same"},
                    scores={"tsq": score if noise.random() < 0.97 else 0.8} if status == "ok" or each else {},
                    began_at=began,
                    duration_ms=ms,
                )


def judged(faster: float, score: float = 1.0, status: str = "ok", arms: ArmFacts = ArmFacts(), unusable: str = "") -> Confirmation:  # noqa: B008
    compared = ComparedSettings([*rollouts(0, 1.0, place=0)], [*rollouts(faster, score, place=1, status=status)])
    return confirm(compared, TERMS, RunFacts("run", planned=len(compared.base) * 2), arms, unusable)


def test_faster_at_equal_quality_is_better() -> None:
    """Settings that are faster, with quality that passes the margin, are better."""
    found = judged(0.1)

    assert CONFIRMED == found.verdict
    assert ("rollout.p50", "faster") == (found.speed.metric, found.speed.finding)
    assert 0.9 == pytest.approx(found.speed.estimate, abs=0.01)


def test_lower_quality_is_not_better() -> None:
    """Settings that lose more quality than the margin are not better, however fast they are."""
    assert REFUTED == judged(0.5, 0.8).verdict


def test_slower_is_not_better() -> None:
    """Settings that are slower are not better."""
    assert REFUTED == judged(-0.1).verdict


def test_equal_speed_is_not_shown_to_be_better() -> None:
    """Without a shown difference in speed nothing is claimed."""
    assert OPEN == judged(0.0).verdict


def test_doubts_keep_a_confirmation_open() -> None:
    """Lost rollouts, timings that are not usable, and an arm that failed leave the question open."""
    assert OPEN == judged(0.1, status="infra_error").verdict
    assert OPEN == judged(0.1, unusable="this machine was too busy").verdict
    assert OPEN == judged(0.1, arms=ArmFacts(failures={"new": "the backend died"})).verdict
