"""A group of rollouts is given up if the server refuses all its calls."""

from __future__ import annotations

from pytest_agentbench.records import LLMCall, Rollout, RolloutKey
from pytest_agentbench.rollouts.pool.failed_attempts import Refusals

REFUSED = LLMCall(0, 0, 1, http_status=400, error_kind="http_status", error="HTTP 400: no parser")
BROKEN = LLMCall(0, 0, 1, http_status=500, error_kind="server_error", error="HTTP 500: boom")
GOOD = LLMCall(0, 0, 1, http_status=200)
WHY = "HTTP 400: no parser; the server refused {} of shop and answered no call, so no further scenario is tried"


def key(name: str, suite: str = "shop", trial: int = 1) -> RolloutKey:
    return RolloutKey(suite, name, trial=trial)


PLAN = [*map(key, "abcd")]


def ended(name: str, *calls: LLMCall, suite: str = "shop", trial: int = 1) -> Rollout:
    return Rollout(*key(name, suite, trial), status="infra_error", calls=calls)


def test_two_scenarios_are_enough() -> None:
    """The second refused scenario ends the group, with the server's message as the reason."""
    refusals = Refusals()

    assert "" == refusals.after(ended("a", REFUSED), PLAN, [])
    assert WHY.format("the first 2 scenarios") == refusals.after(ended("b", REFUSED), PLAN, [])


def test_trials_of_one_scenario_are_not() -> None:
    """Refusals of one scenario may be caused by that scenario, unless it is the only one."""
    refusals = Refusals()

    assert "" == refusals.after(ended("a", REFUSED), PLAN, [])
    assert "" == refusals.after(ended("a", REFUSED, trial=2), PLAN, [])
    assert WHY.format("the only scenario") == Refusals().after(ended("a", REFUSED), [key("a"), key("a", trial=2)], [])


def test_what_runs_may_still_be_answered() -> None:
    """The decision waits for rollouts that were running at the second refusal, not for those that began later."""
    refusals = Refusals()
    refusals.after(ended("a", REFUSED), PLAN, [])

    assert "" == refusals.after(ended("b", REFUSED), PLAN, [key("b"), key("c")])
    assert "" == refusals.after(ended("d", REFUSED), PLAN, [key("c"), key("d"), key("e")])
    assert WHY.format("the first 3 scenarios") == refusals.after(ended("c", BROKEN), PLAN, [key("c"), key("e")])


def test_one_answer_is_enough() -> None:
    """A group with at least one answered call is never given up."""
    early, late = Refusals(), Refusals()
    early.after(ended("a", GOOD), PLAN, [])
    late.after(ended("a", REFUSED), PLAN, [key("c")])
    late.after(ended("b", REFUSED), PLAN, [key("c")])

    assert "" == late.after(ended("c", GOOD), PLAN, [])
    for refusals in (early, late):
        assert ["", "", ""] == [refusals.after(ended(name, REFUSED), PLAN, []) for name in "abd"]


def test_groups_are_apart() -> None:
    """Refusals in one suite do not affect another suite."""
    refusals = Refusals()

    assert ["", ""] == [refusals.after(ended(name, REFUSED, suite=suite), PLAN, []) for name, suite in (("a", "shop"), ("b", "bank"))]
    assert ["", ""] == [refusals.after(ended(name, BROKEN), PLAN, []) for name in "cd"]
