"""The functions of metrics that are single numbers. Each takes a slice of rollouts and returns the number, or None if it is unknown."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from pytest_agentbench.metrics import timings
from pytest_agentbench.metrics.terms import GOOD, verdicts_of
from pytest_agentbench.stats.series import unknown

if TYPE_CHECKING:
    from pytest_agentbench.metrics.frame import Rows, Slice
    from pytest_agentbench.metrics.terms import TokenPrices
    from pytest_agentbench.stats.series import Counts, Floats, Mask


def ratio(amount: float | None, over: float | None) -> float | None:
    """Returns `amount / over`. None if one of them is unknown, or if `over` is 0."""
    return amount / over if amount is not None and over else None


def output_tokens_per_s(part: Slice) -> float | None:
    return ratio(part.output_tokens, part.seconds)


def rollouts_per_hour(part: Slice) -> float | None:
    return ratio(part.rollouts_done * 3600, part.seconds)


def calls_per_minute(part: Slice) -> float | None:
    return ratio(part.calls_done * 60, part.seconds)


def speedup(part: Slice) -> float | None:
    """Returns output tokens per second of the slice / mean output tokens per second of its calls."""
    of_calls = part.known("call_output_tokens_per_s")
    return timings.speedup(output_tokens_per_s(part), float(of_calls.mean()) if len(of_calls) else None)


def prefix_cache_hit_ratio(part: Slice) -> float | None:
    return hit_ratio(part.successful_calls.__getitem__)


def hit_ratio(column: Callable[[str], Floats]) -> float | None:
    """Returns cached prompt tokens / prompt tokens. `column` returns a column of the table of calls by name."""
    cached, prompt = _cached(column)
    return ratio(float(cached.sum()), float(prompt.sum()))


def call_prefix_cache_hit_ratio(part: Slice) -> float | None:
    cached, prompt = _cached(part.successful_calls.__getitem__)
    return float((cached / prompt).mean()) if len(prompt) else None


def _cached(column: Callable[[str], Floats]) -> tuple[Floats, Floats]:
    """Returns the cached tokens and the prompt tokens of each call whose usage reports both."""
    cached, prompt = column("cached_tokens"), column("prompt_tokens")
    known = (cached >= 0) & (prompt > 0)  # both are false for NaN
    return cached[known], prompt[known]


def call_verdicts(part: Slice) -> Counts:
    """Returns for each call whether it met the latency objectives: GOOD, BAD or UNKNOWN (see `verdicts_of`)."""
    return verdicts_of(part.calls.__getitem__, ~part.frame.is_successful[part.calls.mask], part.terms.objectives)


def goodput_per_s(part: Slice) -> float | None:
    return ratio(int((call_verdicts(part) == GOOD).sum()), part.seconds) if part.terms.objectives else None


class Tokens(NamedTuple):
    """The token counts of some calls, failed ones included."""

    prompt: int  # prompt tokens
    cached: int  # prompt tokens from the prefix cache
    output: int  # output tokens
    is_known: bool  # whether each successful call has a count of prompt tokens

    @classmethod
    def of(cls, calls: Rows) -> Tokens:
        prompt, cached = calls["prompt_tokens"], calls["cached_tokens"]
        is_known = not (unknown(prompt) & calls["is_successful"]).any()
        return cls(int(prompt[prompt > 0].sum()), int(cached[cached > 0].sum()), int(calls["output_tokens"].sum(dtype=float)), is_known)

    def cost(self, prices: TokenPrices) -> float | None:
        """Returns the cost of the tokens. None if a count is unknown."""
        return prices.of(self.prompt, self.cached, self.output) if self.is_known else None


def measured_rollouts(part: Slice) -> int:
    """Returns the number of rollouts that ended as `ok`, `limit` or `agent_error`."""
    return int(_measured(part).sum())


def _measured(part: Slice) -> Mask:
    mask: Mask = part.rollouts["is_evaluable"] | (part.rollouts["status"] == "agent_error")
    return mask


def tokens_per_rollout(part: Slice) -> float | None:
    """Returns the mean number of tokens in the last attempts of measured rollouts."""
    is_measured = part.chosen.copy()
    is_measured[part.chosen] = _measured(part)
    calls = part.frame.calls
    tokens = Tokens.of(part.calls.of(calls["is_last"] & is_measured[calls["rollout"]]))
    return ratio(tokens.prompt + tokens.output, measured_rollouts(part)) or None if tokens.is_known else None


def seconds_per_rollout(part: Slice) -> float | None:
    """Returns the mean duration of the last attempts of measured rollouts."""
    took = (part.rollouts["ended_ns"] - part.rollouts["started_ns"])[_measured(part)]
    return ratio(float(took.sum()) / 1e9, len(took)) or None


def score_per_1k_tokens(part: Slice) -> float | None:
    tokens = tokens_per_rollout(part)
    return ratio(part.terms.score, tokens and tokens / 1000)


def score_per_second(part: Slice) -> float | None:
    return ratio(part.terms.score, seconds_per_rollout(part))


def cost(part: Slice) -> float | None:
    """Returns the cost of all calls of all attempts. None without prices, or if a successful call has no count of prompt tokens."""
    return Tokens.of(part.calls).cost(part.terms.prices) if part.terms.prices else None


def cost_per_rollout(part: Slice) -> float | None:
    return ratio(cost(part), measured_rollouts(part))


def cost_per_pass(part: Slice) -> float | None:
    return ratio(cost(part), part.terms.passed)
