"""The order of arms is balanced after a cycle, and steady drift cancels out after any two rounds."""

from __future__ import annotations

from collections import Counter
from itertools import chain, pairwise

from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.rollouts.pool.blocks import cycle, order
from pytest_agentbench.suites.arms import MOST_ARMS

COUNTS = st.integers(2, MOST_ARMS)


def rounds(count: int, first: int, number: int) -> list[tuple[int, ...]]:
    return [order(count, place) for place in range(first, first + number)]


def test_two_arms() -> None:
    """Two arms alternate as AB BA BA AB, repeatedly."""
    names = ["".join("AB"[arm] for arm in each) for each in rounds(2, 0, 8)]

    assert ["AB", "BA", "BA", "AB"] * 2 == names


def test_three_and_four_arms() -> None:
    """Each row is followed by its reverse. Three arms have a cycle of six rounds, four arms one of four."""
    assert [(0, 1, 2), (2, 1, 0), (1, 2, 0), (0, 2, 1), (2, 0, 1), (1, 0, 2)] == rounds(3, 0, cycle(3))
    assert [(0, 1, 3, 2), (2, 3, 1, 0), (1, 2, 0, 3), (3, 0, 2, 1)] == rounds(4, 0, cycle(4))
    assert (2, 1, 0) == order(3, cycle(3))


@given(count=COUNTS, turn=st.integers(0, 9))
def test_a_cycle_is_balanced(count: int, turn: int) -> None:
    """In each cycle every arm is equally often at each place, and equally often directly after each other arm within a round."""
    rows = rounds(count, turn * cycle(count), cycle(count))
    places = Counter((arm, place) for row in rows for place, arm in enumerate(row))
    neighbours = Counter(chain.from_iterable(map(pairwise, rows)))

    assert {cycle(count) // count} == set(places.values())
    assert count * count == len(places)
    assert {cycle(count) // count} == set(neighbours.values())
    assert count * (count - 1) == len(neighbours)


@given(count=COUNTS, number=st.integers(1, 40))
def test_a_part_of_a_cycle_is_nearly_balanced(count: int, number: int) -> None:
    """After any number of rounds, counts of places and of neighbours differ by at most two between arms."""
    rows = rounds(count, 0, number)
    places = Counter((arm, place) for row in rows for place, arm in enumerate(row))
    neighbours = Counter(chain.from_iterable(map(pairwise, rows)))

    assert all(sorted(row) == [*range(count)] for row in rows)
    assert 2 >= spread([places[arm, place] for arm in range(count) for place in range(count)])
    assert 2 >= spread([neighbours[arm, other] for arm in range(count) for other in range(count) if arm != other])


def spread(counts: list[int]) -> int:
    return max(counts) - min(counts)


@given(count=COUNTS, number=st.integers(0, 20), drift=st.floats(-1, 1), start=st.floats(0, 10))
def test_steady_drift_cancels_in_two_rounds(count: int, number: int, drift: float, start: float) -> None:
    """If the load grows by the same amount with each block, all arms have the same share after any even number of rounds."""
    loads: Counter[int] = Counter()
    for at, arm in enumerate(chain.from_iterable(rounds(count, 0, 2 * number))):
        loads[arm] += round(1e6 * start) + round(1e6 * drift) * at

    assert 1 >= len(set(loads.values()))


@given(count=COUNTS, number=st.integers(0, 20))
def test_the_arm_that_ends_a_row_begins_its_reverse(count: int, number: int) -> None:
    """The arm does not change between a row and its reverse."""
    assert order(count, 2 * number)[-1] == order(count, 2 * number + 1)[0]
