"""Whether a part that died is started again, and which rollout is to blame."""

from __future__ import annotations

from pytest_agentbench.records import RolloutKey
from pytest_agentbench.rollouts.parts.pool_and_tap_processes import RestartDecision, RestartPolicy

A, B, C, D = (RolloutKey("shop", name) for name in "abcd")


def test_deaths_between_which_rollouts_end() -> None:
    """A part is started again as long as rollouts end between its deaths, however often it dies."""
    deaths = RestartPolicy()
    for number in range(20):
        assert RestartDecision(again=True) == deaths.add("tap", {RolloutKey("shop", str(number))})
        deaths.ended(RolloutKey("shop", str(number)))

    assert {"tap": 20} == deaths.counts


def test_three_deaths_and_nothing_between() -> None:
    """The third one is the last; those of other parts are none of its business."""
    deaths = RestartPolicy()

    assert [True, True, True, False] == [deaths.add(part, ()).again for part in ("pool", "tap", "pool", "pool")]


def test_what_ends_elsewhere() -> None:
    """A rollout that ends says nothing of a part that it had no use for: the engine of the other arm."""
    deaths, again = RestartPolicy(), []
    for _ in range(3):
        again.append(deaths.add("b.engine", ()).again)
        deaths.ended(A, unused=("b.engine",))

    assert [True, True, False] == again


def test_the_one_that_kills_is_singled_out() -> None:
    """What was in flight at two deaths runs alone, and a third one names the rollout that did; others that ran alone are cleared."""
    deaths = RestartPolicy()
    deaths.add("pool", {A, B, C})

    assert RestartDecision(again=True, alone=frozenset({A, B})) == deaths.add("pool", {A, B, D})

    deaths.ended(A)

    assert RestartDecision(again=True, alone=frozenset({A, B}), responsible=B) == deaths.add("pool", {B})
    assert 3 == deaths.deaths_during("pool", B)


def test_deaths_of_different_parts_are_not_added_up() -> None:
    """A rollout that runs alone because of the pool is not to blame for the first death of the engine."""
    deaths = RestartPolicy()
    for _ in range(2):
        deaths.add("pool", {A, B})

    assert RestartDecision(again=True) == deaths.add("engine", {A})


def test_three_to_blame_one_after_the_other() -> None:
    """When all that runs kills it, the fault is not the rollouts': the part is given up, and the records of those do not count as ends."""
    deaths, again = RestartPolicy(), []
    for key in (A, B, C):
        again += [deaths.add("pool", {key}).again for _ in range(3)]
        deaths.ended(key)

    assert [True] * 8 + [False] == again


def test_a_pool_that_says_which_one_it_was() -> None:
    """It is believed at once, and casts no suspicion on what else was in flight."""
    deaths = RestartPolicy()
    for _ in range(2):
        death = deaths.add("pool", {A, B, C}, responsible=A)
        deaths.ended(D)

        assert RestartDecision(again=True, responsible=A) == death
