"""What calls have spent and may spend: a limit is looked at before a call is relayed, so those under way may exceed it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from pytest_agentbench.metrics.cost import TokenPrices
from pytest_agentbench.metrics.timings import output_tokens
from pytest_agentbench.records import LLMCall
from pytest_agentbench.tap.protocol import SpendingLimits


class RelayedCall(Protocol):
    """A call that was relayed."""

    @property
    def record(self) -> LLMCall | None:
        """None while it is under way."""


@dataclass
class Account:
    """The LLM calls of a role, or of a whole rollout."""

    whose: str  # `the role 'search'`, `the rollout`
    limits: SpendingLimits
    entries: list[tuple[RelayedCall, TokenPrices | None]] = field(default_factory=list)  # calls with the prices of their tokens

    def refusal(self) -> str:
        """Why no further call is relayed; empty where one is."""
        limits = self.limits
        spendings = ("calls", limits.calls, len(self.entries)), ("tokens", limits.tokens, self._tokens), ("cost", limits.cost, self._cost)
        for name, limit, spent in spendings:
            if limit is not None and spent >= limit:
                return f"{name}: {self.whose} may take {limit:,g}, and took {spent:,.6g}"
        return ""

    @property
    def _tokens(self) -> int:
        return sum((record.prompt_tokens or 0) + output_tokens(record) for record, _ in self._records())

    @property
    def _cost(self) -> float:
        return sum(
            prices.of(record.prompt_tokens or 0, record.cached_tokens or 0, output_tokens(record))
            for record, prices in self._records()
            if prices is not None
        )

    def _records(self) -> Iterator[tuple[LLMCall, TokenPrices | None]]:
        return ((spender.record, prices) for spender, prices in self.entries if spender.record is not None)
