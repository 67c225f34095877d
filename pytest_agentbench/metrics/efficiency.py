"""What the scores of a suite took: tokens, seconds, money."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_agentbench.metrics import timings
from pytest_agentbench.records import LLMCall, Rollout

if TYPE_CHECKING:
    from pytest_agentbench.metrics.prices import Prices


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """[What scores took](metrics.md#efficiency). Measured rollouts are those that ended as `ok`, `limit` or `agent_error`."""

    tokens_per_rollout: float | None  # of measured rollouts, their last attempts; null where none are known, of the prompts too
    seconds_per_rollout: float | None  # of the same attempts; null where nothing was measured, or nobody took the time
    score_per_1k_tokens: float | None  # main score's mean; null where less of that score is better
    score_per_second: float | None  # the same
    currency: str | None  # of the backend's [prices](backends.md#prices); null without any
    cost: float | None  # of all calls of all attempts; null without prices, or when a call that went well names no prompt tokens
    cost_per_rollout: float | None  # over measured rollouts
    cost_per_pass: float | None  # over rollouts that passed; null where none did, or nobody said what passes


@dataclass
class Tokens:
    """Those that calls name."""

    prompt: int = 0
    cached: int = 0  # of the prompt
    output: int = 0
    unknown: int = 0  # calls that went well and name no prompt tokens

    def add(self, call: LLMCall) -> None:
        self.prompt += call.prompt_tokens or 0
        self.cached += call.cached_tokens or 0
        self.output += timings.output_tokens(call)
        self.unknown += call.error_kind is None and call.prompt_tokens is None

    @property
    def total(self) -> int | None:
        """None where nobody knows."""
        return None if self.unknown else self.prompt + self.output

    def cost(self, prices: Prices) -> float | None:
        """None where nobody knows."""
        return None if self.unknown else prices.of(self.prompt, self.cached, self.output)


@dataclass
class Spending:
    """What the rollouts of a suite took. What was asked of the backend costs, whatever became of the attempt; a score is its last one's."""

    every: Tokens = field(default_factory=Tokens)  # of all attempts
    measured: int = 0  # rollouts
    tokens: Tokens = field(default_factory=Tokens)  # of their last attempts
    seconds: float = 0.0  # of their last attempts

    def add(self, rollout: Rollout) -> None:
        for call in rollout.all_calls:
            self.every.add(call)
        if rollout.evaluable or rollout.status == "agent_error":
            self.measured += 1
            self.seconds += rollout.duration_s
            for call in rollout.calls:
                self.tokens.add(call)

    def efficiency(self, score: float | None, passed: int, prices: Prices | None) -> Efficiency:
        """What there is to say of it beside a score's mean (None: there is none, or less of it is better) and the rollouts that passed."""
        tokens, seconds = _ratio(self.tokens.total, self.measured), _ratio(self.seconds, self.measured)
        cost = self.every.cost(prices) if prices else None
        return Efficiency(
            tokens_per_rollout=tokens or None,
            seconds_per_rollout=seconds or None,
            score_per_1k_tokens=_ratio(score, tokens and tokens / 1000),
            score_per_second=_ratio(score, seconds),
            currency=prices.currency if prices else None,
            cost=cost,
            cost_per_rollout=_ratio(cost, self.measured),
            cost_per_pass=_ratio(cost, passed),
        )


def _ratio(amount: float | None, over: float | None) -> float | None:
    """None of nothing known, and over nothing."""
    return amount / over if amount is not None and over else None
