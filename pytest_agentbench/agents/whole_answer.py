"""Asks the model for a whole answer: one that was cut at its limit of tokens is asked for again with a higher one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import ceil, inf
from typing import Annotated, Any

from pytest_agentbench.errors import LimitReached
from pytest_agentbench.lib.options import ValueKind, check_options, whole
from pytest_agentbench.llm.client import LLM, Reply
from pytest_agentbench.records import Json

ABOVE_ONE = ValueKind(lambda value: type(value) in {int, float} and 1 < value < inf, "a number above 1")


@dataclass(frozen=True)
class TruncationRetry:
    """How often an answer is asked for again that was cut, and with which limit."""

    max_retries: Annotated[int, whole(0)] = 0  # A cut answer is asked for again this many times.
    token_increment: Annotated[int, whole(1)] | None = None  # It may have this many more tokens each time; 1024 by default.
    # Instead of an increment: its limit of tokens is multiplied by this number each time.
    token_scaling: Annotated[float, ABOVE_ONE] | None = None

    def __post_init__(self) -> None:
        check_options(self, "truncation_retry.")
        if self.token_increment is not None and self.token_scaling is not None:
            raise ValueError("truncation_retry has token_increment or token_scaling, not both")

    @classmethod
    def of(cls, options: Json) -> TruncationRetry:
        """From the options in a suite.yaml; raises ValueError, which names the option."""
        known = [each.name for each in fields(cls)]
        for name in options:
            if name not in known:
                raise ValueError(f"truncation_retry: unknown key {name!r}; known: {', '.join(known)}")
        return cls(**options)

    def after(self, limit: int) -> int:
        """The limit of the try after one with `limit`."""
        return limit + (self.token_increment or 1024) if self.token_scaling is None else ceil(limit * self.token_scaling)


NEVER = TruncationRetry()


async def ask(
    llm: LLM, messages: Sequence[Json], tools: Sequence[Json] = (), *, truncation_retry: TruncationRetry = NEVER, **overrides: Any
) -> Reply:
    """The model's whole answer; raises LimitReached when it is still cut in the last try."""
    limit = overrides.get("max_tokens") or llm.sampling.get("max_tokens")
    for left in range(truncation_retry.max_retries, -1, -1):
        reply = await llm.chat(messages, tools, **overrides)
        if reply.finish_reason != "length":
            return reply
        limit = limit or reply.usage.get("completion_tokens") or 0
        if left:
            limit = overrides["max_tokens"] = truncation_retry.after(limit)
    raise LimitReached(f"tokens: the answer was cut after {limit}")
