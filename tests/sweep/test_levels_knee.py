"""The knee of throughput against latency."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.sweep.levels import Operation, knee


def closed(servers: int, levels: range) -> list[Operation]:
    """Returns a closed system that serves this many calls at once, each in 100 ms. Further calls wait."""
    return [Operation(level, 10.0 * min(level, servers), 100.0 * max(1.0, level / servers)) for level in levels]


@given(st.integers(2, 30))
def test_a_planted_knee(servers: int) -> None:
    """The knee is where calls begin to wait."""
    bend = knee(closed(servers, range(1, 64)))
    assert bend
    assert servers == bend.concurrency


def test_two_points_have_no_bend() -> None:
    """A knee needs a level on either side."""
    assert knee(closed(2, range(1, 3))) is None


def test_the_smallest_of_equals() -> None:
    """If several levels have equal power, the smallest is the knee."""
    bend = knee([Operation(4, 10, 100), Operation(2, 10, 100), Operation(8, 10, 200)])
    assert bend
    assert 2 == bend.concurrency
