"""What each role of a rollout took: latency, tokens, cost and errors of its calls, wherever they went."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import fsum

from pytest_agentbench.metrics import timings
from pytest_agentbench.metrics.efficiency import Tokens
from pytest_agentbench.metrics.prices import Prices
from pytest_agentbench.records import LLMCall, Rollout
from pytest_agentbench.stats.percentiles import LatencySpread, latency_spread, numbers

#: How the agent is called among the roles.
AGENT = "agent"


@dataclass(frozen=True, kw_only=True)
class RoleUse:
    """The calls of one [role](roles.md), those of all attempts."""

    models: tuple[str, ...]  # that answered, or were asked for; by name
    endpoints: tuple[str, ...]  # base URLs beside the backend under test that were asked; empty where that was the only one
    calls: int
    measured: int  # of them, those in the serving metrics of the run: they reached the backend under test, and judged nobody
    failed_calls: Mapping[str, int]  # [kind of error](metrics.md#failed-calls) -> calls
    prompt_tokens: int
    cached_tokens: int  # of the prompt
    output_tokens: int
    seconds: float  # of all calls together
    ttft_ms: LatencySpread | None  # as in the [serving metrics](metrics.md#serving-metrics); null when there is no value
    e2e_ms: LatencySpread | None
    currency: str | None  # of the [prices](roles.md#prices); null where a part of it has none
    cost: float | None  # null without prices, or when a call that went well names no prompt tokens


@dataclass
class RoleTally:
    """What is counted of one role."""

    models: set[str] = field(default_factory=set)
    tokens: defaultdict[str, Tokens] = field(default_factory=lambda: defaultdict(Tokens))  # endpoint -> its own
    calls: int = 0
    measured: int = 0
    failed: Counter[str] = field(default_factory=Counter)  # error kind -> calls
    took_ns: int = 0
    ttft: array[float] = field(default_factory=numbers)  # milliseconds
    e2e: array[float] = field(default_factory=numbers)

    def add(self, call: LLMCall) -> None:
        self.models.update(filter(None, [call.answered_by or call.model]))
        self.tokens[call.endpoint].add(call)
        self.calls += 1
        self.measured += call.measured
        self.took_ns += call.ended_ns - call.received_ns
        if call.error_kind:
            self.failed[call.error_kind] += 1
            return
        for values, value in ((self.ttft, timings.ttft_ns(call)), (self.e2e, timings.e2e_ns(call))):
            if value is not None:
                values.append(value / 1e6)

    def use(self, prices: Mapping[str, Prices]) -> RoleUse:
        """`prices`: endpoint -> its own; that of the backend under test is an empty text."""
        currency, cost = self._cost(prices)
        return RoleUse(
            models=tuple(sorted(self.models)),
            endpoints=tuple(sorted(filter(None, self.tokens))),
            calls=self.calls,
            measured=self.measured,
            failed_calls=dict(self.failed.most_common()),
            prompt_tokens=sum(each.prompt for each in self.tokens.values()),
            cached_tokens=sum(each.cached for each in self.tokens.values()),
            output_tokens=sum(each.output for each in self.tokens.values()),
            seconds=self.took_ns / 1e9,
            ttft_ms=latency_spread(self.ttft),
            e2e_ms=latency_spread(self.e2e),
            currency=currency,
            cost=cost,
        )

    def _cost(self, prices: Mapping[str, Prices]) -> tuple[str | None, float | None]:
        """(currency, amount); None where a part of it has no price, or another currency."""
        currencies = {prices[endpoint].currency if endpoint in prices else None for endpoint in self.tokens}
        if None in currencies or len(currencies) > 1:
            return None, None
        costs = [tokens.cost(prices[endpoint]) for endpoint, tokens in self.tokens.items()]
        return currencies.pop(), None if None in costs else fsum(filter(None, costs))


@dataclass
class Roles:
    """Counts over the rollouts of a suite."""

    tallies: defaultdict[str, RoleTally] = field(default_factory=lambda: defaultdict(RoleTally))

    def add(self, rollout: Rollout) -> None:
        for attempt in rollout.attempts:
            for call in (*attempt.calls, *attempt.other_calls):
                self.tallies[call.role].add(call)

    def uses(self, prices: Mapping[str, Prices]) -> dict[str, RoleUse]:
        """Role -> its use, the agent first; empty where nobody but the agent called."""
        return {role or AGENT: self.tallies[role].use(prices) for role in sorted(self.tallies)} if any(self.tallies) else {}
