"""The simulated studies use the code of the command: search, ranking and confirmation."""

from __future__ import annotations

from benchmarks.optimizing.studies import PLANTED, ROLLOUTS, Truth, banking_plan, simulate


def test_a_planted_setting_is_found_and_confirmed() -> None:
    """A setting that is 30 % faster is ranked first and confirmed, within the rollouts of the plan."""
    plan, found = banking_plan(1), simulate(Truth(faster=0.3), 1)

    assert (PLANTED, True) == (found.chosen, found.is_better)
    assert found.rollouts <= sum(plan.rollouts)
    assert len(ROLLOUTS) == sum(map(len, plan.parts)) + len(plan.held_out)


def test_a_trap_is_not_confirmed() -> None:
    """A setting that is much faster and much worse is not called better, even where the search ranks it first."""
    outcomes = [simulate(Truth(faster=0.6, worse=0.2), seed) for seed in range(3)]

    assert PLANTED in {each.chosen for each in outcomes}
    assert not any(each.is_better for each in outcomes)
