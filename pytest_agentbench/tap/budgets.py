"""Time limits for the parts of a call, and spending limits for all calls of a role or rollout.

Spending limits are checked before a call is forwarded, so calls in flight can exceed them.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from pytest_agentbench.metrics.terms import TokenPrices
from pytest_agentbench.metrics.timings import output_tokens
from pytest_agentbench.records import LLMCall
from pytest_agentbench.tap.protocol import Budgets, SpendingLimits


class BudgetedExchange(Protocol):
    """The part of an `Exchange` that `BudgetTimer` uses."""

    @property
    def streams(self) -> bool:
        """Whether a stream was requested from the backend."""

    def last_output_ns(self) -> int | None: ...

    def failed(self, kind: str, message: str) -> None: ...


class BudgetTimer:
    """Ends an exchange (a request and its answer) that has exceeded one of its time limits.

    The events of a stream do not restart the timer, because that would cost time for each event. A timer that expires checks when the
    last token came, and starts again if that was recent enough.
    """

    def __init__(self, exchange: BudgetedExchange, budgets: Budgets) -> None:
        self._exchange, self._budgets = exchange, budgets
        self._loop = asyncio.get_running_loop()
        self._since_ns = 0  # start of the wait for the first token, monotonic nanoseconds
        self._tokens: asyncio.TimerHandle | None = None
        self._call: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Starts the time limit of the whole call. Called after any delay by the rate limit, which does not count."""
        if self._budgets.call is not None:
            self._call = self._loop.call_later(self._budgets.call, self._call_timed_out)

    def expect_token(self, since_ns: int) -> None:
        """Starts the time limit of the first token. Called when the request is sent, or when the backend answers before that."""
        self._since_ns = since_ns
        if self._tokens is None and self._exchange.streams:
            self._check()

    def stop(self) -> None:
        for timer in (self._tokens, self._call):
            if timer is not None:
                timer.cancel()

    def _call_timed_out(self) -> None:
        self._exchange.failed("timeout_call", f"the call took longer than {self._budgets.call:g} s")

    def _check(self) -> None:
        """Ends the exchange if the next token is overdue. Otherwise schedules another check at the end of the time limit for that token.

        Until the first token has arrived, that check is at most `idle` seconds away, because `idle` limits the wait for the second one.
        """
        last, idle = self._exchange.last_output_ns(), self._budgets.idle
        budget = self._budgets.first_token if last is None else idle
        since_ns = self._since_ns if last is None else last
        left = math.inf if budget is None else budget - (time.monotonic_ns() - since_ns) / 1e9
        if left <= 0:
            kind, which = ("timeout_first_token", "first") if last is None else ("timeout_idle", "further")
            self._exchange.failed(kind, f"no {which} token within {budget:g} s")
            return
        pause = left if idle is None else min(left, idle)
        if pause < math.inf:
            self._tokens = self._loop.call_later(pause, self._check)


@dataclass
class Account:
    """The LLM calls of a role or of a whole rollout, and their spending limits."""

    whose: str  # owner as in messages: `the role 'search'`, `the rollout`
    limits: SpendingLimits
    #: For each forwarded call: a function that returns its record (None while the call is in flight), and the prices of its tokens.
    entries: list[tuple[Callable[[], LLMCall | None], TokenPrices | None]] = field(default_factory=list)

    def refusal(self) -> str:
        """Returns the reason why no further call is forwarded, or an empty string if the limits permit one."""
        limits = self.limits
        spendings = ("calls", limits.calls, len(self.entries)), ("tokens", limits.tokens, self._tokens), ("cost", limits.cost, self._cost)
        for name, limit, spent in spendings:
            if limit is not None and spent >= limit:
                return f"{name}: {self.whose} may use {limit:,g}, and used {spent:,.6g}"
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
