"""Tokens and costs of rollouts as objectives of a study."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from pytest_agentbench.gate.evidence import RunFacts
from pytest_agentbench.metrics.terms import TokenPrices
from pytest_agentbench.optimize.confirmation import CONFIRMED, OPEN, REFUTED, ConfirmationTerms, confirm
from pytest_agentbench.optimize.ranking import ComparedSettings, log_ratios
from pytest_agentbench.optimize.spending import SpendingTrial, spending_trial, spent
from pytest_agentbench.records import SHARE, Attempt, LLMCall, Rollout
from pytest_agentbench.runs.results import ArmFacts


def rollouts(arm: int, tokens: int) -> Iterator[SpendingTrial]:
    """Yields the rollouts of one arm in ten blocks of four, which alternate with those of the other arm."""
    for block in range(10):
        for each in range(4):
            scenario, began = f"s{block}-{each}", (2 * block + (arm + block) % 2) * 4 + each
            own = tokens + 10 * each + block  # Scenarios differ.
            yield SpendingTrial(
                "shop", "shop", scenario, 1, "ok", {"scenario": "same"}, scores={"tsq": 1.0}, began_at=began, tokens=own, cost=own / 1e6
            )


@pytest.mark.parametrize(("tokens", "verdict"), [(900, CONFIRMED), (1100, REFUTED), (1000, OPEN)])
@pytest.mark.parametrize("objective", ["tokens", "cost"])
def test_confirmed_by_the_mean(objective: str, tokens: int, verdict: str) -> None:
    """Fewer tokens, or a lower cost, is better, more is not better, and the same shows nothing."""
    terms = ConfirmationTerms("shop", objective, "tsq", SHARE, margin=0.2, deterministic=True)
    compared = ComparedSettings([*rollouts(0, 1000)], [*rollouts(1, tokens)])

    found = confirm(compared, terms, RunFacts("run", planned=80), ArmFacts())

    assert (verdict, objective, 40) == (found.verdict, found.speed.metric, found.speed.n)
    assert tokens / 1000 == pytest.approx(found.speed.estimate, abs=0.01)
    assert math.log(tokens / 1000) == pytest.approx(sum(log_ratios(compared, objective)) / 40, abs=0.01)


def test_all_attempts_are_spent() -> None:
    """Tokens and cost are of all attempts. They are unknown if a call has no count, and there is no cost without prices."""
    first = LLMCall(0, 0, 1, prompt_tokens=100, cached_tokens=40, completion_tokens=10)
    failed = LLMCall(0, 0, 1, error_kind="cut")
    last = Rollout("shop", "s", "default", 1, "ok", calls=(first,), earlier_attempts=(Attempt(1, "infra_error", calls=(first, failed)),))
    prices = TokenPrices("EUR", input=1.0, output=10.0, cached_input=0.5)

    found = spending_trial(last, prices)

    assert 220 == found.tokens
    assert pytest.approx(2 * (60 * 1.0 + 40 * 0.5 + 10 * 10.0) / 1e6) == found.cost
    assert [(220.0,)] == [each.values for each in spent([found], "tokens")]
    assert (220, None) == (spending_trial(last, None).tokens, spending_trial(last, None).cost)
    unknown = spending_trial(Rollout("shop", "s", "default", 1, "ok", calls=(LLMCall(0, 0, 1),)), prices)
    assert [()] == [each.values for each in spent([unknown], "cost")]
    assert [] == spent([spending_trial(Rollout("shop", "s", "default", 1, "infra_error"), prices)], "cost")
