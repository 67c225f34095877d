"""The knee of throughput against latency."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.sweep.levels import Operation, knee


def closed(servers: int, levels: range) -> list[Operation]:
    """A closed system that serves so many calls at once, each in 100 ms: beyond that they wait."""
    return [Operation(level, 10.0 * min(level, servers), 100.0 * max(1.0, level / servers)) for level in levels]


@given(st.integers(2, 30))
def test_a_planted_knee(servers: int) -> None:
    """Where calls begin to wait there is the knee."""
    bend = knee(closed(servers, range(1, 64)))
    assert bend
    assert servers == bend.concurrency


def test_two_points_have_no_bend() -> None:
    """A knee needs a level on both sides."""
    assert knee(closed(2, range(1, 3))) is None


def test_the_smallest_of_equals() -> None:
    """Where more in flight gives as much power, fewer are enough."""
    bend = knee([Operation(4, 10, 100), Operation(2, 10, 100), Operation(8, 10, 200)])
    assert bend
    assert 2 == bend.concurrency
