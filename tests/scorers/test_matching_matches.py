"""Pairs of expected and actual calls."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.scorers.matching import best_pairs

TABLES = st.tuples(st.integers(1, 6), st.integers(1, 6)).flatmap(
    lambda size: st.lists(st.lists(st.integers(0, 9), min_size=size[1], max_size=size[1]), min_size=size[0], max_size=size[0])
)


def by_trying(worths: list[list[int]]) -> int:
    """Returns the greatest total worth of all possible pairings."""
    if len(worths) > len(worths[0]):
        worths = [[*row] for row in zip(*worths, strict=True)]
    ways = permutations(range(len(worths[0])), len(worths))
    return max(sum(row[column] for row, column in zip(worths, way, strict=True)) for way in ways)


@given(TABLES)
def test_no_other_pairs_are_worth_more(worths: list[list[int]]) -> None:
    """The pairing is one of the best, has as many pairs as possible, and uses each row and column at most once."""
    pairs = best_pairs(worths)

    assert by_trying(worths) == sum(worths[row][column] for row, column in pairs)
    assert min(len(worths), len(worths[0])) == len({row for row, _ in pairs}) == len({column for _, column in pairs})
    assert sorted(pairs) == pairs


def test_nothing_to_pair() -> None:
    """Without rows or columns there are no pairs."""
    assert [] == best_pairs([]) == best_pairs([[], []])
