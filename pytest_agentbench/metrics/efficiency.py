"""What the scores of a suite took: tokens, seconds, money."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_agentbench.records import OPEN


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """[What scores took](metrics.md#efficiency). Measured rollouts are those that ended as `ok`, `limit` or `agent_error`."""

    currency: str | None  # of the backend's [prices](backends.md#prices); null without any
    # `tokens_per_rollout` and all other metrics of a suite in the [table](metrics.md#efficiency); null if a number is unknown
    metrics: Mapping[str, float | None] = field(metadata=OPEN)
