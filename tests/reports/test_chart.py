"""Pictures within a page: what stands where."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from pytest_agentbench.gate.trend import Point
from pytest_agentbench.reports.chart import HEIGHT, WIDTH, Chart, ticks


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
@example(839.0, 0.001)
def test_ticks(low: float, size: float) -> None:
    """Two to five numbers, all of them between the ends."""
    found = ticks(low, low + size)

    assert 2 <= len(found) <= 5
    assert all(low - 1e-6 <= each <= low + size + 1e-6 for each in found)


def test_ticks_are_round() -> None:
    """A reader knows them without counting."""
    assert [0.2, 0.4, 0.6, 0.8, 1.0] == ticks(0.1, 1.03)
    assert [100.0, 120.0, 140.0, 160.0] == ticks(97.0, 178.0)


def test_no_axis_below_zero() -> None:
    """A count or a latency is never negative, and its picture says nothing of such values; a difference may be."""
    assert 0.0 == Chart([Point("a", 0.0, None, None)]).low == Chart([Point("a", 0.5, 0.01, 1.0)]).low
    assert Chart([Point("a", 40.0, None, None), Point("b", 42.0, None, None)]).low > 39
    assert Chart([Point("a", 0.0, -1.0, 1.0)]).low < -1


def test_all_is_inside() -> None:
    """Points and ends of intervals lie in the picture, those of a single run and of equal values, too."""
    for points in ([Point("a", 0.0, None, None)], [Point("a", 5.0, 4.0, 9.0), Point("b", 1.0, -2.0, 2.0)], [Point("a", 1.0, 1.0, 1.0)] * 2):
        chart = Chart(points)
        for place, point in enumerate(points):
            assert 0 <= chart.x(place) <= WIDTH
            assert all(0 <= chart.y(end) <= HEIGHT for end in (point.value, point.low, point.high) if end is not None)
