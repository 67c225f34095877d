"""The objectives of a study that are no durations: tokens and costs of rollouts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pytest_agentbench.gate.evidence import Trial, trial_of
from pytest_agentbench.metrics import timings
from pytest_agentbench.metrics.terms import TokenPrices
from pytest_agentbench.records import Rollout
from pytest_agentbench.stats.latency import RolloutLatencies

TOKENS, COST = SPENDING = ("tokens", "cost")


@dataclass(frozen=True)
class SpendingTrial(Trial):
    """A rollout as gates see it, with its tokens and its cost. Both are of all attempts, and only of calls to the backend."""

    tokens: int | None = None  # prompt and output tokens; None if a successful call has no count of prompt tokens
    cost: float | None = None  # cost by the backend's `prices`; None without prices, or if `tokens` is


def spending_trial(rollout: Rollout, prices: TokenPrices | None) -> SpendingTrial:
    """Returns the data of a rollout that a study uses. `prices` are those of its backend."""
    calls = rollout.all_calls
    known = all(call.prompt_tokens is not None or call.error_kind is not None for call in calls)
    prompt, cached = sum(call.prompt_tokens or 0 for call in calls), sum(call.cached_tokens or 0 for call in calls)
    output = sum(map(timings.output_tokens, calls))
    cost = prices.of(prompt, cached, output) if known and prices else None
    return SpendingTrial(**vars(trial_of(rollout)), tokens=prompt + output if known else None, cost=cost)


def spent(trials: Iterable[Trial], objective: str) -> list[RolloutLatencies]:
    """Returns the tokens or the cost of each rollout with a measurement, in the form of latencies. An unknown one, or 0, has no value."""
    measured = [each for each in trials if isinstance(each, SpendingTrial) and each.status in ("ok", "limit")]
    amounts = [each.tokens if objective == TOKENS else each.cost for each in measured]
    return [
        RolloutLatencies(each.scenario, each.trial, each.began_at, (float(amount),) if amount else ())
        for each, amount in zip(measured, amounts, strict=True)
    ]
