"""The coordinates of charts."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from pytest_agentbench.reports.document import Chart, ChartPoint, Tone, say
from pytest_agentbench.reports.html_elements import HEIGHT, WIDTH, Axes, svg, ticks


def point(value: float, low: float | None = None, high: float | None = None, tone: Tone = "", *, begins: bool = False) -> ChartPoint:
    return ChartPoint(value, low, high, f"at {value:g}", say(str, f"about {value:g} <b>"), tone, begins)


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
@example(839.0, 0.001)
def test_ticks(low: float, size: float) -> None:
    """An axis has two to five ticks, all inside the range."""
    found = ticks(low, low + size)

    assert 2 <= len(found) <= 5
    assert all(low - 1e-6 <= each <= low + size + 1e-6 for each in found)


def test_ticks_are_round() -> None:
    """Ticks are round numbers."""
    assert [0.2, 0.4, 0.6, 0.8, 1.0] == ticks(0.1, 1.03)
    assert [100.0, 120.0, 140.0, 160.0] == ticks(97.0, 178.0)


def test_no_axis_below_zero() -> None:
    """The axis of counts and latencies does not go below zero. The axis of differences may."""
    assert 0.0 == Axes([point(0.0)]).low == Axes([point(0.5, 0.01, 1.0)]).low
    assert Axes([point(40.0), point(42.0)]).low > 39
    assert Axes([point(0.0, -1.0, 1.0)]).low < -1


def test_points_are_inside_the_chart() -> None:
    """Points and intervals are inside the chart, also for a single run and for equal values."""
    for points in ([point(0.0)], [point(5.0, 4.0, 9.0), point(1.0, -2.0, 2.0)], [point(1.0, 1.0, 1.0)] * 2):
        chart = Axes(points)
        for place, each in enumerate(points):
            assert 0 <= chart.x(place) <= WIDTH
            assert all(0 <= chart.y(end) <= HEIGHT for end in (each.value, each.low, each.high) if end is not None)


def test_marks() -> None:
    """A point has its tone, a tooltip, and a line if the setup changed. The first and the last point have labels."""
    points = (point(1.0, 0.5, 1.5), point(2.0, tone="bad", begins=True), point(3.0, tone="good"))
    picture = [*svg(Chart("score", say(str, "3 at last"), points))]

    circles = [line for line in picture if line.startswith("<circle")]
    assert ["point", "bad", "good"] == [line.split('"')[1] for line in circles]
    assert ["about 1 &lt;b&gt;", "about 2 &lt;b&gt;", "about 3 &lt;b&gt;"] == [
        line.split("<title>")[1].split("</title>")[0] for line in circles
    ]
    x = circles[1].split('cx="')[1].split('"')[0]
    assert [f'x1="{x}"'] == [line.split()[2] for line in picture if line.startswith('<line class="begins"')]
    assert 1 == sum(line.startswith('<line class="interval"') for line in picture)
    assert [">at 1<", ">at 3<"] == [label for label in (">at 1<", ">at 2<", ">at 3<") if any(label in line for line in picture)]
    assert "score" in picture[0] and "3 at last" in picture[0]
