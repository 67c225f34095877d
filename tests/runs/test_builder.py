"""Building a Run from rollouts and from the facts of a session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.lib.codec import plain
from pytest_agentbench.metrics.stopwatch import Stopwatch
from pytest_agentbench.records import Attempt, Json, LLMCall, Rollout, Score
from pytest_agentbench.runs.builder import RunReader, build_run, plan_suite, prices_of
from pytest_agentbench.runs.results import PlannedSuite
from pytest_agentbench.runs.run_file import BackendUse, Imported, Run, SessionFacts
from pytest_agentbench.suites.suite import Scenario
from tests.made_runs import SCALES, SHOP, session_facts

SCENARIOS = tuple(Scenario(f"s-{number}", ({"role": "user", "content": "A lamp?"},)) for number in range(2))
ASKED = plan_suite("shop", replace(SHOP, scenarios=SCENARIOS), "default", {"tsq.mean": 0.8})


def rollout(number: int, score: float | None, started_ns: int = 0, ended_ns: int = 0) -> Rollout:
    status, scores = ("ok", {"tsq": Score(score)}) if score is not None else ("infra_error", {})
    made = Rollout("shop", f"s-{number}", "default", 1, status, scores=scores, calls=(LLMCall(0, 0, 10),))
    return replace(made, started_ns=started_ns, ended_ns=ended_ns)


def asked_with(thresholds: Mapping[str, float]) -> PlannedSuite:
    return replace(ASKED, facts=replace(ASKED.facts, thresholds=thresholds))


def built(*rollouts: Rollout, asked: PlannedSuite = ASKED, facts: SessionFacts | None = None) -> Run:
    read = RunReader()
    for each in rollouts:
        read.add(each, "tsq", SCALES["tsq"])
    return build_run(facts or session_facts(), [asked], read)


def test_nothing_measured() -> None:
    """If no rollout was measured, a suite with thresholds is unknown, and a suite without thresholds is not."""
    assert ("shop",) == built(rollout(0, None)).unknown_suites
    assert () == built(rollout(0, 0.0)).unknown_suites
    assert () == built(asked=asked_with({})).unknown_suites


def test_facts_are_kept() -> None:
    """The builder keeps all facts and adds results of rollouts. A run can be the facts of the next one."""
    facts = session_facts(id="one", resume="pytest --agentbench-resume=one")
    run = built(rollout(0, 1.0), facts=facts)

    assert facts.facts() == run.facts()
    assert run == built(rollout(0, 1.0), facts=run)


@pytest.mark.parametrize(("ended_ns", "span_s"), [(2_000_000_000, 1.0), (0, 0.0)])
def test_a_rollout_without_times(ended_ns: int, span_s: float) -> None:
    """A rollout without times is counted, but no timing includes it, because its span would begin in 1970."""
    run = built(rollout(0, 1.0, started_ns=1_000_000_000 if ended_ns else 0, ended_ns=ended_ns))

    assert (1, span_s) == (run.suites["shop"].rollouts["ok"], run.performance.span_s)


@pytest.mark.parametrize(("verdict", "known"), [("warn", True), (None, False)])
def test_the_split_of_imported_results_is_unknown(verdict: str | None, known: bool) -> None:
    """The split of the time is None for imported results, unless the tool recorded the times of calls."""
    imported = Imported("nat", str(Path("job")), "", "", (), {}, ())
    facts = session_facts(imported=imported, stopwatch=Stopwatch(verdict=verdict))

    run = built(rollout(0, 1.0, started_ns=10, ended_ns=2_000), facts=facts)

    assert known == (run.performance.split is not None)


PRICES = {"currency": "USD", "input": 1.0, "cached_input": 0.5, "output": 10.0}
CALL = LLMCall(0, 0, 10, prompt_tokens=1000, cached_tokens=400, completion_tokens=100)
SECOND = 1_000_000_000  # nanoseconds


def priced(prices: Json | None = PRICES) -> SessionFacts:
    """Returns a backend whose YAML has prices."""
    use = BackendUse(name="priced", note="", kind="url", served_model="m", failure="", more={"prices": prices} if prices else {})
    return session_facts(backend=use)


def took(number: int, status: str = "ok", score: float = 0.0, calls: tuple[LLMCall, ...] = (CALL,), **keys: Any) -> Rollout:
    scores = {"tsq": Score(score)} if status in ("ok", "limit") else {}
    return Rollout("shop", f"s-{number}", "default", 1, status, scores=scores, calls=calls, ended_ns=2 * SECOND, **keys)


def test_efficiency() -> None:
    """Efficiency uses the mean score, tokens and seconds of measured rollouts. Cost includes all attempts, measured or not.

    A call of 600 new, 400 cached prompt tokens and 100 output tokens costs 0.0018: there are four of them, and two measured rollouts.
    """
    failed = Attempt(1, "infra_error", calls=(CALL,))
    rollouts = took(0, score=1.0, attempt=2, earlier_attempts=(failed,)), took(1, "agent_error"), took(2, "infra_error")
    run = built(*rollouts, asked=asked_with({"tsq": 0.5}), facts=priced())

    assert {
        "tokens_per_rollout": 1100.0,
        "seconds_per_rollout": 2.0,
        "score_per_1k_tokens": pytest.approx(0.5 / 1.1),
        "score_per_second": 0.25,
        "currency": "USD",
        "cost": pytest.approx(0.0072),
        "cost_per_rollout": pytest.approx(0.0036),
        "cost_per_pass": pytest.approx(0.0072),
    } == plain(run.suites["shop"].efficiency)
    assert {"USD": pytest.approx(0.0072)} == run.costs


def test_unknown_tokens() -> None:
    """If a successful call has no count of prompt tokens, tokens and cost are unknown. A failed call without it does not matter."""
    uncounted = LLMCall(0, 0, 10)
    unknown = built(took(0, score=1.0, calls=(CALL, uncounted)), facts=priced())
    known = built(took(0, score=1.0, calls=(CALL, replace(uncounted, error_kind="connect"))), facts=priced())

    metrics = unknown.suites["shop"].efficiency.metrics
    names = "tokens_per_rollout", "score_per_1k_tokens", "cost", "score_per_second"
    assert (None, None, None, 0.5) == tuple(metrics[name] for name in names)
    assert {"USD": None} == unknown.costs
    assert {"USD": pytest.approx(0.0018)} == known.costs


def test_rollouts_without_calls() -> None:
    """Rollouts without calls, as in some imported results, have no count of tokens."""
    assert built(took(0, score=1.0, calls=()), facts=priced()).suites["shop"].efficiency.metrics["tokens_per_rollout"] is None


def test_without_prices() -> None:
    """Without prices there is no cost. Without a price for cached tokens they cost as much as others."""
    free, flat = built(took(0), facts=priced(None)), built(took(0), facts=priced({"currency": "EUR", "input": 1.0, "output": 10.0}))
    efficiency = free.suites["shop"].efficiency

    assert ({}, None, None) == (free.costs, efficiency.metrics["cost"], efficiency.currency)
    assert {"EUR": pytest.approx(0.002)} == flat.costs


def test_less_is_better() -> None:
    """A score whose lower values are better has no score per token."""
    falling = plan_suite("shop", replace(SHOP, scenarios=SCENARIOS, scorers={"hallucinated": {}}))
    read = RunReader()
    read.add(replace(took(0), scores={"hallucinated": Score(1.0)}), "hallucinated", SCALES["hallucinated"])
    metrics = build_run(session_facts(), [falling], read).suites["shop"].efficiency.metrics

    assert (None, None, 1100.0) == tuple(metrics[name] for name in ("score_per_1k_tokens", "score_per_second", "tokens_per_rollout"))


def test_each_arm_has_its_prices() -> None:
    """In a session with two backends, a variant has the prices of its arm's YAML."""
    arms = {"cheap": {"name": "a", "prices": PRICES}, "dear": {"name": "b", "prices": {**PRICES, "currency": "EUR"}}, "free": {"name": "c"}}
    both = BackendUse(name="a vs b", note="", kind="ab", served_model="m", failure="", more={"arms": arms})
    priced = {variant: prices_of(both, variant) for variant in ("cheap", "quick-dear", "free", "default")}

    assert {"cheap": "USD", "quick-dear": "EUR", "free": None, "default": None} == {
        variant: prices.currency if prices else None for variant, prices in priced.items()
    }
