"""The order in which arms take turns: balanced, so that neither a place nor a neighbour is any arm's more than another's."""

from __future__ import annotations


def order(count: int, number: int) -> tuple[int, ...]:
    """The arms, counted from 0, in the order of their blocks in one round; rounds are counted from 0. AB BA BA AB of two arms.

    The rows are those of Williams (1949, Australian Journal of Scientific Research A 2:149): in a whole cycle, which has `cycle(count)`
    rounds, each arm is equally often at each place, and each comes equally often right after each other one. Each row is followed by its
    reverse, so that what drifts steadily cancels out in every two rounds, and no arm is changed between them. In every other cycle the
    reverse comes first: where load comes and goes, rounds that are neighbours are in the same order as often as not.
    """
    turn, place = divmod(number, cycle(count))
    row, second = divmod(place, 2)
    arms = tuple((arm + row) % count for arm in _first_row(count))
    return arms[::-1] if (turn + second) % 2 else arms


def cycle(count: int) -> int:
    """Rounds of so many arms after which all is balanced; of an even number of arms the reverse of a row is a row itself."""
    return count if count % 2 == 0 else 2 * count


def _first_row(count: int) -> list[int]:
    """0, 1, n - 1, 2, n - 2, ...: each difference between neighbours is there once, modulo n, in the row or in its reverse."""
    return [(place + 1) // 2 if place % 2 else -(place // 2) % count for place in range(count)]
