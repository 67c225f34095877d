"""Calls, tokens and costs of roles, computed from literal records."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_agentbench.metrics.suite_metrics import uses
from pytest_agentbench.metrics.terms import TokenPrices
from pytest_agentbench.records import Attempt, Chunk, LLMCall, Rollout
from pytest_agentbench.runs.builder import prices_by_endpoint
from pytest_agentbench.runs.results import SuiteResult
from tests.frames import scenarios_of
from tests.made_runs import SHOP, run_of

MS = 1_000_000
EXPERT = "http://expert/v1"
BACKEND = TokenPrices("USD", input=1.0, output=2.0)
DEAR = TokenPrices("USD", input=10.0, cached_input=1.0, output=20.0)


def call(role: str = "", at: int = 0, ttft: int = 100, took: int = 200, **keys: object) -> LLMCall:
    """Returns a call with 1,000 prompt tokens, 500 of them cached, and 100 output tokens. Times are milliseconds."""
    stamps = (Chunk((at + ttft) * MS, "content"),)
    made = LLMCall(at * MS, at * MS, (at + took) * MS, stamps, model="m", role=role, token_source="usage")
    return replace(replace(made, prompt_tokens=1000, cached_tokens=500, completion_tokens=100), **keys)  # type: ignore[arg-type]


def rollout(*calls: LLMCall, **keys: object) -> Rollout:
    own, other = (tuple(each for each in calls if each.measured is measured) for measured in (True, False))
    made = Rollout("shop", "b-0", "default", 1, "ok", started_ns=0, ended_ns=1000 * MS, calls=own, other_calls=other)
    return replace(made, **keys)  # type: ignore[arg-type]


def suite(*rollouts: Rollout) -> SuiteResult:
    return run_of(*rollouts).suites["shop"]


def test_roles_are_counted_separately() -> None:
    """Each role has its calls, failures, tokens and latencies of all attempts. The agent comes first."""
    failed = call(
        "search", endpoint=EXPERT, error_kind="rate_limited", chunks=(), prompt_tokens=None, cached_tokens=None, completion_tokens=None
    )
    earlier = Attempt(1, "infra_error", other_calls=(failed,))
    asked = rollout(call(), call("search", ttft=300, took=500, endpoint=EXPERT, answered_by="small"), call("reasoner"))
    roles = suite(replace(asked, earlier_attempts=(earlier,))).roles

    assert ["agent", "reasoner", "search"] == [*roles]
    search = roles["search"]
    assert (2, 0, {"rate_limited": 1}, (EXPERT,), ("m", "small")) == (
        *(search.calls, search.measured, search.failed_calls, search.endpoints, search.models),
    )
    assert (1000, 500, 100, 0.7) == (search.prompt_tokens, search.cached_tokens, search.output_tokens, search.seconds)
    assert search.ttft_ms is not None
    assert search.e2e_ms is not None
    assert (1, 300.0, 500.0) == (search.ttft_ms.n, search.ttft_ms.p50, search.e2e_ms.p50)
    assert (1, 1, ()) == (roles["reasoner"].calls, roles["reasoner"].measured, roles["reasoner"].endpoints)


def test_the_endpoint_decides_which_calls_are_measured() -> None:
    """Serving metrics include a role's calls to the backend under test, but not those to other endpoints."""
    run = run_of(rollout(call(), call("reasoner", at=300), call("search", at=600, endpoint=EXPERT, ttft=300), call("judge", at=900)))
    ttft = run.performance.latency("ttft")

    assert (2, 2000, 200) == (run.performance.calls, run.performance.prompt_tokens, run.performance.output_tokens)
    assert ttft is not None
    assert (2, 100.0) == (ttft.n, ttft.max)
    assert 2200 == run.suites["shop"].efficiency.metrics["tokens_per_rollout"]


def test_a_run_without_roles() -> None:
    """If only the agent makes calls, nothing is counted by role."""
    assert {} == suite(rollout(call())).roles


def test_the_costs_of_roles() -> None:
    """Tokens are priced by endpoint. Without a price or a token count, or with different currencies, the cost is unknown."""
    made = rollout(
        call(), call("search", endpoint=EXPERT), call("both"), call("both", endpoint=EXPERT), call("free", endpoint="http://free")
    )
    part = scenarios_of(made)
    found = uses(part, {"": BACKEND, EXPERT: DEAR})

    own, dear = 0.001 + 0.0002, 0.005 + 0.0005 + 0.002
    assert [pytest.approx(own), pytest.approx(own + dear), None, pytest.approx(dear)] == [
        found[name].cost for name in ("agent", "both", "free", "search")
    ]
    assert ("USD", None) == (found["search"].currency, found["free"].currency)
    foreign = uses(part, {"": BACKEND, EXPERT: replace(DEAR, currency="EUR")})
    assert (None, None) == (foreign["both"].cost, foreign["both"].currency)
    more = rollout(call("search", endpoint=EXPERT, prompt_tokens=None))
    unknown = uses(scenarios_of(made, more), {EXPERT: DEAR})["search"]
    assert ("USD", None) == (unknown.currency, unknown.cost)


def test_the_measured_calls_of_a_role() -> None:
    """`measured` counts the calls of a role to the backend: all, some or none. Failed calls count with their time and tokens."""
    cut = call("search", endpoint=EXPERT, error_kind="cut")
    found = suite(rollout(call(), call("reasoner"), call("judge", took=2500), call("search"), cut)).roles

    assert {"agent": (1, 1, 0), "reasoner": (1, 1, 0), "judge": (1, 0, 0), "search": (2, 1, 1)} == {
        name: (role.calls, role.measured, sum(role.failed_calls.values())) for name, role in found.items()
    }
    assert {"agent": 1000, "reasoner": 1000, "judge": 1000, "search": 2000} == {name: role.prompt_tokens for name, role in found.items()}
    assert (0.2, 2.5, 0.4) == tuple(found[name].seconds for name in ("reasoner", "judge", "search"))
    assert (1000, 200, (EXPERT,), ("m",)) == (
        *(found["search"].cached_tokens, found["search"].output_tokens, found["search"].endpoints, found["search"].models),
    )
    assert {"cut": 1} == found["search"].failed_calls
    latencies = found["search"].ttft_ms, found["search"].e2e_ms
    assert [(100.0, None), (200.0, None)] == [(spread.p50, spread.p95) for spread in latencies if spread]


def test_prices_by_endpoint() -> None:
    """The endpoint of a price matches the role's URL, with or without a slash at the end of the URL."""
    priced = replace(SHOP, roles={"search": {"url": f"{EXPERT}/", "model": "m", "prices": vars(DEAR)}, "reasoner": {}})

    assert {EXPERT: DEAR, "": BACKEND} == prices_by_endpoint(priced.roles, BACKEND)
