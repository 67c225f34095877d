"""A metric over runs as SVG, which a page carries inside it: a line, an interval for each point, and marks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from pytest_agentbench.gate.trend import Point
from pytest_agentbench.lib.foreign import one_line

WIDTH, HEIGHT = 480, 200
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 14, 26  # around the area of the points
MOST = 5  # lines with a number
ROOM = 0.08  # of the values' range, above and below them


class Chart:
    """Places of points: runs at equal distances, values between the ends of all intervals."""

    def __init__(self, points: Sequence[Point]) -> None:
        ends = [end for point in points for end in (point.value, point.low, point.high) if end is not None]
        room = (max(ends) - min(ends)) * ROOM or abs(ends[0]) * ROOM or 1.0
        self.low, self.high = min(ends) - room, max(ends) + room
        if min(ends) >= 0:  # what is never negative has no axis below zero
            self.low = max(0.0, self.low)
        self.points = points

    def x(self, place: int) -> float:
        """From the left, of the point at a place."""
        share = place / (len(self.points) - 1) if len(self.points) > 1 else 0.5
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        """From the top."""
        return round(TOP + (self.high - value) / (self.high - self.low) * (HEIGHT - TOP - BOTTOM), 1)


def ticks(low: float, high: float) -> list[float]:
    """Two to five round numbers between two others: multiples of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(high - low))
    # `high - low` may come out just below the power of ten that it is: then only the last step is large enough.
    steps = (power / 5, power / 2, power, 2 * power, 5 * power)
    step = next(step for step in steps if math.floor(high / step) - math.ceil(low / step) < MOST)
    return [round(number * step, 12) for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def svg(
    title: str, points: Sequence[Point], labels: Sequence[str], notes: Sequence[str], marks: Mapping[str, str], setups: set[str]
) -> Iterator[str]:
    """The lines of a picture.

    `labels` and `notes` have a short and a long text for each point; `marks` has `fell` or `rose` for runs at which the metric stepped;
    at `setups` the setup is another one than before.
    """
    chart = Chart(points)
    yield f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{_text(title)}">'
    for value in ticks(chart.low, chart.high):
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{chart.y(value)}" y2="{chart.y(value)}"/>'
        yield f'<text class="axis" x="{LEFT - 6}" y="{chart.y(value) + 4}" text-anchor="end">{value:.4g}</text>'
    for place, point in enumerate(points):
        if point.run in setups:
            yield f'<line class="setup" x1="{chart.x(place)}" x2="{chart.x(place)}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
    for place, point in enumerate(points):
        if point.low is not None and point.high is not None:
            x = chart.x(place)
            yield f'<line class="interval" x1="{x}" x2="{x}" y1="{chart.y(point.low)}" y2="{chart.y(point.high)}"/>'
    places = " ".join(f"{chart.x(place)},{chart.y(point.value)}" for place, point in enumerate(points))
    yield f'<polyline class="line" points="{places}"/>'
    for place, (point, note) in enumerate(zip(points, notes, strict=True)):
        mark = marks.get(point.run, "point")
        radius = 3 if mark == "point" else 5
        yield f'<circle class="{mark}" cx="{chart.x(place)}" cy="{chart.y(point.value)}" r="{radius}"><title>{_text(note)}</title></circle>'
    yield f'<text class="axis" x="{LEFT}" y="{HEIGHT - 6}">{_text(labels[0])}</text>'
    if len(points) > 1:
        yield f'<text class="axis" x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{_text(labels[-1])}</text>'
    yield "</svg>"


def _text(text: str) -> str:
    return escape(one_line(text))
