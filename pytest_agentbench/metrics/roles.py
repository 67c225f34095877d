"""What each role of a rollout took: latency, tokens, cost and errors of its calls, wherever they went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum
from typing import TYPE_CHECKING

from pytest_agentbench.metrics.cost import TokenPrices
from pytest_agentbench.metrics.slice_metrics import Tokens
from pytest_agentbench.stats.percentiles import LatencySpread, latency_spread

if TYPE_CHECKING:
    from pytest_agentbench.metrics.frame import Slice

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


def uses(part: Slice, prices: Mapping[str, TokenPrices]) -> dict[str, RoleUse]:
    """Returns role -> its use, the agent first; empty if only the agent called.

    `prices`: endpoint -> its own; that of the backend under test is an empty text.
    """
    calls = part.frame.calls
    roles = sorted(set(calls["role"][part.chosen[calls["rollout"]]].tolist()))
    return {role or AGENT: _use(part.where(role=role), prices) for role in roles} if any(roles) else {}


def _use(part: Slice, prices: Mapping[str, TokenPrices]) -> RoleUse:
    calls = part.calls
    endpoints = [*dict.fromkeys(calls["endpoint"].tolist())]
    of_endpoints = {each: Tokens.of(calls.of(calls.table["endpoint"] == each)) for each in endpoints}
    currency, cost = _cost(of_endpoints, prices)
    ttft, e2e = (latency_spread(part.known(f"{name}_ms")) for name in ("ttft", "e2e"))
    return RoleUse(
        models=tuple(sorted({by or asked for asked, by in zip(calls["model"], calls["answered_by"], strict=True)} - {""})),
        endpoints=tuple(sorted(filter(None, endpoints))),
        calls=len(calls),
        measured=int(calls["measured"].sum()),
        failed_calls=dict(Counter(filter(None, calls["error_kind"])).most_common()),
        prompt_tokens=sum(each.prompt for each in of_endpoints.values()),
        cached_tokens=sum(each.cached for each in of_endpoints.values()),
        output_tokens=sum(each.output for each in of_endpoints.values()),
        seconds=float(calls["tap_ms"].sum()) / 1e3,
        ttft_ms=ttft,
        e2e_ms=e2e,
        currency=currency,
        cost=cost,
    )


def _cost(tokens: Mapping[str, Tokens], prices: Mapping[str, TokenPrices]) -> tuple[str | None, float | None]:
    """Returns (currency, amount) of the tokens of each endpoint; None if a part of it has no price, or another currency."""
    currencies = {prices[endpoint].currency if endpoint in prices else None for endpoint in tokens}
    if None in currencies or len(currencies) > 1:
        return None, None
    costs = [each.cost(prices[endpoint]) for endpoint, each in tokens.items()]
    return currencies.pop(), None if None in costs else fsum(filter(None, costs))
