"""The plan of a study: the split of scenarios, the trials of the confirmation, and what makes a confirmation impossible."""

from __future__ import annotations

from pytest_agentbench.optimize.plan import CONFIRMATION_PAIRS, MOST_CONFIRMATION_TRIALS, StudyPlan, confirmation_trials, obstacles, split


def plan(held_out: int = 50, trials: int = 3, concurrency: int = 4) -> StudyPlan:
    parts = (("a", "b"), ("c", "d"), ("e", "f"))
    return StudyPlan(parts, tuple(str(each) for each in range(held_out)), 20, trials, concurrency, 0)


def test_the_confirmation_sees_other_scenarios() -> None:
    """Search and confirmation share no scenario, have half of them each, and the seed decides which."""
    ids = [f"s{number}" for number in range(40)]

    parts, held_out = split(dict.fromkeys(ids), 1)

    seen = [each for part in parts for each in part]
    assert sorted(ids) == sorted([*seen, *held_out])
    assert (20, 3, [7, 7, 6]) == (len(held_out), len(parts), [*map(len, parts)])
    assert (parts, held_out) == split(dict.fromkeys(ids), 1)
    assert held_out != split(dict.fromkeys(ids), 2)[1]


def test_a_cluster_is_not_divided() -> None:
    """Scenarios of one cluster are on one side, because they are alike."""
    parts, held_out = split({f"s{number}": f"c{number // 5}" for number in range(40)}, 3)

    clusters = [{int(each[1:]) // 5 for each in side} for side in ([each for part in parts for each in part], held_out)]
    assert set() == clusters[0] & clusters[1]


def test_noisier_scores_take_more_trials() -> None:
    """The confirmation has as many trials as unchanged quality needs to pass the margin. Sometimes no number is enough."""
    quiet, loud = (confirmation_trials(50, within, 0.05, deterministic=False) for within in (0.002, 0.12))

    assert quiet is not None
    assert loud is not None
    assert quiet < loud <= MOST_CONFIRMATION_TRIALS
    assert confirmation_trials(50, 0.12, 0.01, deterministic=False) is None
    assert 1 == confirmation_trials(50, 0.12, 0.01, deterministic=True)


def test_speed_needs_pairs_of_blocks() -> None:
    """The confirmation has enough pairs of blocks to compare speed, even if quality needs a single trial."""
    chosen = plan().with_confirmation(1)

    assert chosen.confirmation_pairs >= CONFIRMATION_PAIRS > plan(trials=1).confirmation_pairs
    assert (240, 2 * 50 * chosen.confirmation_trials) == chosen.rollouts


def test_a_study_that_cannot_confirm_says_so() -> None:
    """A plan with too few trials for the margin, or with too few pairs of blocks, has a reason for each."""
    assert () == tuple(obstacles(plan(), 3, 0.05))
    assert "9 trials are needed" in obstacles(plan(), 9, 0.05)[0]
    assert "a larger --margin" in obstacles(plan(), None, 0.05)[0]
    [pairs] = obstacles(plan(held_out=6, trials=1, concurrency=8), 1, 0.05)
    assert "pairs of blocks" in pairs
