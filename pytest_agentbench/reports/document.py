"""A report before it is laid out: a document has sections, and a section has blocks. Renderers turn documents into text.

A block holds findings: typed values, each with the phrase that puts it into words (`phrases`). No renderer holds a sentence, and no
section holds markup or escapes. Each block says from which level on it is shown, so that one document serves every reader.

A chart block has a drawing of its own, `svg`, which pages include: a line, an interval for each point, and marks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from html import escape
from typing import Any, Literal, ParamSpec

from pytest_agentbench.lib.foreign import one_line

P = ParamSpec("P")

LONGEST = 300  # characters of what a test, a tool or a model said

Tone = Literal["good", "bad", "open", ""]  # what a verdict means for its reader; renderers choose the colour


class Level(IntEnum):
    """How much a reader wants to know."""

    HEADLINE = 0  # one line, with -q
    FIRST_PAGE = 1  # what a session prints at its end
    SUMMARY = 2  # a comment on a pull request, and the first screen of report.html
    FULL = 3  # with -v, and by `agentbench show`
    VERBOSE = 4  # report.md, report.html, and with -vv


@dataclass(frozen=True)
class Code:
    """A name, a command, or what a program or a person said. Renderers set it apart from the words around it."""

    text: str
    kind: Literal["name", "scenario", "command"] = "name"  # a page links to a scenario; a command is never cut or folded

    @property
    def shown(self) -> str:
        """The text as files show it: on one line, and cut if it is long and no command."""
        text = " ".join(self.text.split())
        return text if self.kind == "command" or len(text) <= LONGEST else f"{text[:LONGEST]}..."


Text = str | Code | tuple[str | Code, ...]


@dataclass(frozen=True)
class Finding:
    """Typed values and the phrase that puts them into words. Two findings are equal if phrase and values are."""

    phrase: Callable[..., Text]
    values: tuple[Any, ...]

    @property
    def words(self) -> Text:
        """The finding in words; empty if there is nothing to say."""
        return self.phrase(*self.values)


def say(phrase: Callable[P, Text], *values: P.args, **named: P.kwargs) -> Finding:
    """Returns the finding of some values. They are given by position."""
    assert not named
    return Finding(phrase, values)


@dataclass(frozen=True)
class Measure:
    """A number with its unit, its 95 % interval, and what else is to be known of it."""

    value: float | None  # None: it was not measured
    unit: str = ""  # `ms`; `%` for a share, whose value lies between 0 and 1
    statistic: str = ""  # `median`; empty for a mean or a count
    low: float | None = None
    high: float | None = None
    digits: int = 3
    about: str = ""


TableCell = Text | Finding | float | None
Content = Text | Finding | Measure


@dataclass(frozen=True, kw_only=True)
class ReportBlock:
    """What all blocks have: the levels at which they are shown."""

    level: Level = Level.FULL  # from this one on
    until: Level = Level.VERBOSE  # up to this one; above it another block says the same in full


@dataclass(frozen=True)
class Fact(ReportBlock):
    """A label and what is to be said under it. A fact without a label continues the one before it."""

    label: str
    content: Content
    tone: Tone = ""
    one_line: bool = False  # a terminal cuts it instead of folding it


@dataclass(frozen=True)
class Column:
    """The head of a column. Numbers in it have so many digits after the point, and stand on the right."""

    title: str
    digits: int | None = None  # None: the column has words

    @property
    def has_numbers(self) -> bool:
        return self.digits is not None


def heads(*titles: str | tuple[str, int]) -> tuple[Column, ...]:
    """Returns columns: a title alone has words below it, a title with a number has numbers of so many digits."""
    return tuple(Column(title) if isinstance(title, str) else Column(*title) for title in titles)


@dataclass(frozen=True)
class Table(ReportBlock):
    """Rows of cells. The first columns name what the row is about."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    repeated: int = 1  # columns that a terminal repeats if the others do not fit beside each other
    tones: tuple[Tone, ...] = ()  # of each row, whose first cell a page colours; empty: no row has one

    def __post_init__(self) -> None:
        """Raises ValueError if a row does not have a cell for each column, or if only some rows have a tone."""
        if wrong := next((row for row in self.rows if len(row) != len(self.columns)), None):
            raise ValueError(f"a row has {len(wrong)} cells, and the table {len(self.columns)} columns")
        if self.tones and len(self.tones) != len(self.rows):
            raise ValueError(f"{len(self.tones)} of {len(self.rows)} rows have a tone")


@dataclass(frozen=True)
class Bullets(ReportBlock):
    """A list of findings."""

    items: tuple[Content, ...]


@dataclass(frozen=True)
class Note(ReportBlock):
    """A paragraph: how to read what stands before it, or what is missing from it."""

    content: Text | Finding
    tone: Tone = ""


@dataclass(frozen=True)
class Listing(ReportBlock):
    """Lines of a log, a file or a program, as they are."""

    text: str


@dataclass(frozen=True)
class Figure(ReportBlock):
    """A picture in a file."""

    title: str
    path: str  # relative to the report


@dataclass(frozen=True)
class ChartPoint:
    """A value with its interval, at a place of a chart."""

    value: float
    low: float | None
    high: float | None
    label: str  # a short text, which stands below the first point and the last one
    about: Finding  # all that is known of the point
    tone: Tone = ""
    begins: bool = False  # a line stands at this point, because what follows was made in another way


@dataclass(frozen=True)
class Chart(ReportBlock):
    """Values in their order, which a page draws. A terminal and Markdown have the content alone."""

    title: str
    content: Finding
    points: tuple[ChartPoint, ...]


AnyBlock = Fact | Table | Bullets | Note | Listing | Figure | Chart


@dataclass(frozen=True)
class Section:
    """A subject of a report: a title, which may be empty, and blocks, which may be sections themselves."""

    title: Text
    blocks: tuple[AnyBlock | Section, ...]
    folded: bool = False  # a page shows the title alone until the reader opens the section

    def at(self, level: Level) -> Section | None:
        """Returns what a reader of a level sees of the section; None if that is nothing."""
        blocks = tuple(_shown(self.blocks, level))
        return replace(self, blocks=blocks) if blocks else None

    def flat(self) -> Iterator[AnyBlock]:
        """Yields the blocks of the section, and those of the sections in it."""
        for each in self.blocks:
            if isinstance(each, Section):
                yield from each.flat()
            else:
                yield each

    def findings(self) -> Iterator[Finding]:
        """Yields the findings of all blocks from top to bottom."""
        yield from (each for block in self.flat() for each in contents(block) if isinstance(each, Finding))


@dataclass(frozen=True)
class Document:
    """A report: what it is about, its answer in one sentence, and its sections."""

    title: Text
    headline: Fact | None  # None for reports that only compare
    sections: tuple[Section, ...]

    @classmethod
    def of(cls, title: Text, parts: Iterable[Section | None], headline: Fact | None = None) -> Document:
        """Returns a document of the sections that have something to say."""
        return cls(title, headline, tuple(part for part in parts if part))

    def at(self, level: Level) -> Document:
        """Returns what a reader of a level sees of the document."""
        return self.of(self.title, (each.at(level) for each in self.sections), self.headline)

    def blocks(self) -> Iterator[AnyBlock]:
        """Yields all blocks from top to bottom."""
        for each in self.sections:
            yield from each.flat()


def section(title: Text, blocks: Iterable[AnyBlock | Section | None]) -> Section | None:
    """Returns a section of the blocks that have something to say, sections in it last; None if there is nothing to say.

    What follows a section in a text would be read as a part of it.
    """
    kept = [block for block in blocks if block is not None and not _is_empty(block)]
    return Section(title, tuple(sorted(kept, key=lambda block: isinstance(block, Section)))) if kept else None


def contents(block: AnyBlock) -> tuple[Any, ...]:
    """Returns all that a block says: texts, findings, measures and cells."""
    match block:
        case Fact() | Note():
            return (block.content,)
        case Chart():
            return block.content, *(point.about for point in block.points)
        case Bullets():
            return block.items
        case Table():
            return tuple(cell for row in block.rows for cell in row)
        case Listing():
            return (block.text,)
        case Figure():
            return block.title, block.path


def words_of(content: Content) -> Text | Measure:
    """Returns what a renderer lays out: a text, or a measure."""
    return content.words if isinstance(content, Finding) else content


def spans(text: Text) -> tuple[str | Code, ...]:
    """Returns the parts of a text."""
    return text if isinstance(text, tuple) else (text,)


def plain(text: Text) -> str:
    """Returns a text without its marks."""
    return "".join(each.text if isinstance(each, Code) else each for each in spans(text))


def _shown(blocks: Iterable[AnyBlock | Section], level: Level) -> Iterator[AnyBlock | Section]:
    for block in blocks:
        if isinstance(block, Section):
            if part := block.at(level):
                yield part
        elif block.level <= level <= block.until:
            yield block


def _is_empty(block: AnyBlock | Section) -> bool:
    if isinstance(block, Fact | Note):
        text = words_of(block.content)
        return not isinstance(text, Measure) and not plain(text)
    if isinstance(block, Table):
        return not block.rows
    if isinstance(block, Bullets):
        return not block.items
    return False


WIDTH, HEIGHT = 480, 200
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 14, 26  # around the area of the points
MOST = 5  # lines with a number
MARGIN = 0.08  # of the values' range, above and below them


class Axes:
    """Places of points: at equal distances, values between the ends of all intervals."""

    def __init__(self, points: Sequence[ChartPoint]) -> None:
        ends = [end for point in points for end in (point.value, point.low, point.high) if end is not None]
        margin = (max(ends) - min(ends)) * MARGIN or abs(ends[0]) * MARGIN or 1.0
        self.low, self.high = min(ends) - margin, max(ends) + margin
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


def svg(chart: Chart) -> Iterator[str]:
    """Yields the lines of a picture."""
    axes, points = Axes(chart.points), chart.points
    yield f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{_text(chart.title)}: {_text(chart.content.words)}">'
    for value in ticks(axes.low, axes.high):
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{axes.y(value)}" y2="{axes.y(value)}"/>'
        yield f'<text class="axis" x="{LEFT - 6}" y="{axes.y(value) + 4}" text-anchor="end">{value:.4g}</text>'
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
        yield f'<circle class="{point.tone or "point"}" {at} r="{5 if point.tone else 3}"><title>{about}</title></circle>'
    yield f'<text class="axis" x="{LEFT}" y="{HEIGHT - 6}">{_text(points[0].label)}</text>'
    if len(points) > 1:
        yield f'<text class="axis" x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{_text(points[-1].label)}</text>'
    yield "</svg>"


def _text(text: Text) -> str:
    return escape(one_line(plain(text)))
