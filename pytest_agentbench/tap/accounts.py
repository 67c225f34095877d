"""What calls have spent and may spend: a limit is looked at before a call is relayed, so those under way may exceed it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pytest_agentbench.metrics.cost import TokenPrices
from pytest_agentbench.metrics.timings import output_tokens
from pytest_agentbench.records import LLMCall
from pytest_agentbench.tap.protocol import SpendingLimits


@dataclass
class Account:
    """The LLM calls of a role, or of a whole rollout."""

    whose: str  # `the role 'search'`, `the rollout`
    limits: SpendingLimits
    #: of each relayed call: its record, which is None while the call is under way, and the prices of its tokens
    entries: list[tuple[Callable[[], LLMCall | None], TokenPrices | None]] = field(default_factory=list)

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
        return ((record, prices) for record_of_call, prices in self.entries if (record := record_of_call()) is not None)
