"""Decides whether a dead part is started again, and which rollout is responsible."""

from __future__ import annotations

from pytest_agentbench.records import RolloutKey
from pytest_agentbench.rollouts.parts.pool_and_tap_processes import RestartDecision, RestartPolicy

A, B, C, D = (RolloutKey("shop", name) for name in "abcd")


def test_deaths_between_which_rollouts_end() -> None:
    """A part is started again, however often it dies, if rollouts end between its deaths."""
    deaths = RestartPolicy()
    for number in range(20):
        assert RestartDecision(again=True) == deaths.add("tap", {RolloutKey("shop", str(number))})
        deaths.ended(RolloutKey("shop", str(number)))

    assert {"tap": 20} == deaths.counts


def test_three_deaths_and_nothing_between() -> None:
    """After three deaths without a finished rollout a part is not started again. Deaths of other parts do not count."""
    deaths = RestartPolicy()

    assert [True, True, True, False] == [deaths.add(part, ()).again for part in ("pool", "tap", "pool", "pool")]


def test_rollouts_that_do_not_use_the_part() -> None:
    """A finished rollout does not reset the count of a part that it does not use, such as the engine of the other arm."""
    deaths, again = RestartPolicy(), []
    for _ in range(3):
        again.append(deaths.add("b.engine", ()).again)
        deaths.ended(A, unused=("b.engine",))

    assert [True, True, False] == again


def test_the_responsible_rollout_is_found() -> None:
    """Rollouts in flight at two deaths run alone. A third death names the responsible one, and others that ran alone are cleared."""
    deaths = RestartPolicy()
    deaths.add("pool", {A, B, C})

    assert RestartDecision(again=True, alone=frozenset({A, B})) == deaths.add("pool", {A, B, D})

    deaths.ended(A)

    assert RestartDecision(again=True, alone=frozenset({A, B}), responsible=B) == deaths.add("pool", {B})
    assert 3 == deaths.deaths_during("pool", B)


def test_deaths_of_different_parts_are_not_added_up() -> None:
    """A rollout that runs alone because of the pool is not responsible for the first death of the engine."""
    deaths = RestartPolicy()
    for _ in range(2):
        deaths.add("pool", {A, B})

    assert RestartDecision(again=True) == deaths.add("engine", {A})


def test_three_responsible_rollouts_in_a_row() -> None:
    """After three responsible rollouts in a row the part is given up. Their records do not count as finished rollouts."""
    deaths, again = RestartPolicy(), []
    for key in (A, B, C):
        again += [deaths.add("pool", {key}).again for _ in range(3)]
        deaths.ended(key)

    assert [True] * 8 + [False] == again


def test_a_pool_that_names_the_responsible_rollout() -> None:
    """The rollout that the pool names is responsible at once, and others in flight are not suspected."""
    deaths = RestartPolicy()
    for _ in range(2):
        death = deaths.add("pool", {A, B, C}, responsible=A)
        deaths.ended(D)

        assert RestartDecision(again=True, responsible=A) == death
