"""Elements of HTML pages, without scripts: charts as SVG elements, and tooltips.

Tooltips contain definitions of metrics, statistics and built-in scores, for the mouse, the keyboard and screen readers.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from pytest_agentbench.lib.foreign import one_line
from pytest_agentbench.lib.user_code import load_object
from pytest_agentbench.metrics import registry
from pytest_agentbench.reports import phrases
from pytest_agentbench.reports.document import Chart, ChartPoint, Text, plain
from pytest_agentbench.scorers import SCORERS

WIDTH, HEIGHT = 480, 200
LEFT, RIGHT, TOP, BOTTOM = 68, 12, 14, 26  # margins around the area of the points
MOST = 5  # maximum number of grid lines
MARGIN = 0.08  # space above and below the values, as a share of their range


class Axes:
    """Maps the points of a chart to SVG coordinates. They are equally far apart, and the values of the axis include all intervals."""

    def __init__(self, points: Sequence[ChartPoint]) -> None:
        ends = [end for point in points for end in (point.value, point.low, point.high) if end is not None]
        margin = (max(ends) - min(ends)) * MARGIN or abs(ends[0]) * MARGIN or 1.0
        self.low, self.high = min(ends) - margin, max(ends) + margin
        if min(ends) >= 0:  # An axis of values that are never negative does not go below zero.
            self.low = max(0.0, self.low)
        self.points = points

    def x(self, place: int) -> float:
        """Returns the x coordinate of a point, given its index."""
        share = place / (len(self.points) - 1) if len(self.points) > 1 else 0.5
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        """Returns the y coordinate of a value, which grows downwards."""
        return round(TOP + (self.high - value) / (self.high - self.low) * (HEIGHT - TOP - BOTTOM), 1)


def ticks(low: float, high: float) -> list[float]:
    """Returns two to five round numbers in a range: multiples of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(high - low))
    # Rounding may put `high - low` just below a power of ten. Then only the last step is large enough.
    steps = (power / 5, power / 2, power, 2 * power, 5 * power)
    step = next(step for step in steps if math.floor(high / step) - math.ceil(low / step) < MOST)
    return [round(number * step, 12) for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def svg(chart: Chart, address: Callable[[str], str] = lambda _run: "") -> Iterator[str]:
    """Yields the lines of a chart as an SVG element. `address` links the runs of its points; a chart with links is no single image."""
    axes, points = Axes(chart.points), chart.points
    links = [address(point.run) if point.run else "" for point in points]
    role = "group" if any(links) else "img"
    yield f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="{role}" aria-label="{_text(chart.title)}: {_text(chart.content.words)}">'
    if chart.unit:
        middle = (TOP + HEIGHT - BOTTOM) / 2
        yield f'<text class="axis" x="12" y="{middle}" text-anchor="middle" transform="rotate(-90 12 {middle})">{_text(chart.unit)}</text>'
    for value in ticks(axes.low, axes.high):
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{axes.y(value)}" y2="{axes.y(value)}"/>'
        yield f'<text class="axis" x="{LEFT - 6}" y="{axes.y(value) + 4}" text-anchor="end">{phrases.general(value)}</text>'
    for place, point in enumerate(points):
        if point.begins:
            yield f'<line class="begins" x1="{axes.x(place)}" x2="{axes.x(place)}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
    for place, point in enumerate(points):
        if point.low is not None and point.high is not None:
            x = axes.x(place)
            yield f'<line class="interval" x1="{x}" x2="{x}" y1="{axes.y(point.low)}" y2="{axes.y(point.high)}"/>'
    places = " ".join(f"{axes.x(place)},{axes.y(point.value)}" for place, point in enumerate(points))
    yield f'<polyline class="line" points="{places}"/>'
    for place, point in enumerate(points):
        at, about = f'cx="{axes.x(place)}" cy="{axes.y(point.value)}"', _text(point.about.words)
        circle = f'<circle class="{point.tone or "point"}" {at} r="{5 if point.tone else 3}"><title>{about}</title></circle>'
        yield f'<a href="{escape(links[place])}" aria-label="{about}">{circle}</a>' if links[place] else circle
    yield f'<text class="axis" x="{LEFT}" y="{HEIGHT - 6}">{_text(points[0].label)}</text>'
    if len(points) > 1:
        yield f'<text class="axis" x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{_text(points[-1].label)}</text>'
    if chart.order:
        yield f'<text class="axis" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{_text(chart.order)}</text>'
    yield "</svg>"


def _text(text: Text) -> str:
    return escape(one_line(plain(text)))


DEFINITIONS = registry.definitions()

#: Title of a statistic in a table -> its definition.
STATISTICS: Mapping[str, str] = {
    "n": "Number of values.",
    "p1": "1 % of the values are at most this.",
    "p5": "5 % of the values are at most this.",
    "p10": "10 % of the values are at most this.",
    "p50": "Median: half of the values are at most this.",
    "p90": "90 % of the values are at most this.",
    "p95": "95 % of the values are at most this.",
    "p99": "99 % of the values are at most this.",
    "median, 95 %": "95 % interval of the median.",
}
STATISTIC = re.compile(r"\b(?:p1|p5|p10|p50|p90|p95|p99)\b")
ABBREVIATION = re.compile(rf"\b(?:{'|'.join(title for title in DEFINITIONS if title.isupper())})\b")
IN_LABEL = re.compile(f"{ABBREVIATION.pattern}|{STATISTIC.pattern}")
KEYBOARD = ' tabindex="0"'  # the Tab key reaches the element; the style sheet then shows its title

#: A rule of the style sheets of pages: an abbreviation that has the focus shows its definition at the bottom of the window.
FOCUSED_TOOLTIP = """abbr[title]:focus::after, button[title]:focus-visible::before { content: attr(title); position: fixed; z-index: 10;
  left: 12px; right: 12px; bottom: 12px; padding: 8px 12px; background: var(--card); color: var(--ink); border: 1px solid var(--edge);
  border-radius: 6px; font: 14px/1.4 system-ui, sans-serif; text-align: left; white-space: normal; overflow-wrap: anywhere; }"""


def definition_of(name: str) -> str:
    """Returns the definition of a metric, a statistic or a built-in score by its title. Empty if it has none."""
    return DEFINITIONS.get(name) or STATISTICS.get(name) or _definition_of_score(name)


@functools.cache
def _definition_of_score(name: str) -> str:
    if name not in SCORERS:
        return ""
    first_line = inspect.getdoc(load_object("scorer", name, SCORERS, Path())) or ""
    text = first_line.partition("\n")[0].removeprefix("Returns ").replace("`", "")
    return text[:1].upper() + text[1:]


def with_tooltips(text: str, *, label: bool = False) -> str:
    """Escapes a text. Abbreviations, or the whole text if it is the title of a metric, have their definition as a tooltip.

    In a `label`, so have statistics and scores, and the keyboard reaches the tooltips. In sentences it does not, because the same
    abbreviations have labels, and a reader would have to pass each of them.
    """
    shown = one_line(text)
    if definition := (definition_of(shown) if label else DEFINITIONS.get(shown)):
        return _tooltip(shown, definition, label=label)
    pattern = ABBREVIATION if not label else IN_LABEL
    parts = pattern.split(shown)
    found = [*(_tooltip(each, definition_of(each), label=label) for each in pattern.findall(shown)), ""]
    return "".join(escape(part) + each for part, each in zip(parts, found, strict=True))


def _tooltip(title: str, definition: str, *, label: bool) -> str:
    return f'<abbr title="{escape(definition)}"{KEYBOARD * label}>{escape(title)}</abbr>'
