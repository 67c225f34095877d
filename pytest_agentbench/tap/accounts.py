"""What calls have spent and may spend: a limit is looked at before a call is relayed, so those under way may exceed it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pytest_agentbench.metrics.cost import cost_of
from pytest_agentbench.metrics.timings import output_tokens
from pytest_agentbench.records import Json, LLMCall


class RelayedCall(Protocol):
    """A call that was relayed."""

    @property
    def record(self) -> LLMCall | None:
        """None while it is under way."""


@dataclass
class Account:
    """The LLM calls of a role, or of a whole rollout."""

    whose: str  # `the role 'search'`, `the rollout`
    limits: Mapping[str, Any]  # of `calls`, `tokens` and `cost`; what is not there has none
    entries: list[tuple[RelayedCall, Json | None]] = field(default_factory=list)  # calls with the prices of their tokens

    def refusal(self) -> str:
        """Why no further call is relayed; empty where one is."""
        for name, spent in (("calls", len(self.entries)), ("tokens", self._tokens), ("cost", self._cost)):
            limit = self.limits.get(name)
            if limit is not None and spent >= limit:
                return f"{name}: {self.whose} may take {limit:,g}, and took {spent:,.6g}"
        return ""

    @property
    def _tokens(self) -> int:
        return sum((record.prompt_tokens or 0) + output_tokens(record) for record, _ in self._records())

    @property
    def _cost(self) -> float:
        return sum(
            cost_of(prices, record.prompt_tokens or 0, record.cached_tokens or 0, output_tokens(record))
            for record, prices in self._records()
            if prices is not None
        )

    def _records(self) -> Iterator[tuple[LLMCall, Json | None]]:
        return ((spender.record, prices) for spender, prices in self.entries if spender.record is not None)
