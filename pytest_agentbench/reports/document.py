"""The model of reports. A document contains sections, and a section contains blocks; renderers turn them into text.

- A block contains findings: typed values, and a phrase that turns them into a sentence (see `phrases`). So renderers contain no
  sentences, sections contain no markup and no escapes, and tests compare values instead of words.
- Each block has a range of levels at which it is shown. One document serves all readers, from the one line of `-q` to report.md.
- HTML pages draw a chart with `chart.svg`: a line, an interval for each point, and marks. Other renderers show only its text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Literal, NewType, ParamSpec

P = ParamSpec("P")

LONGEST = 300  # maximum characters of a text from a test, a tool or a model

Tone = Literal["good", "bad", "open", ""]  # the meaning of a verdict; renderers choose a colour for it


class Level(IntEnum):
    """The amount of a report that is shown, from one line to everything. Each block has the levels that show it."""

    HEADLINE = 0  # the line of -q
    FIRST_PAGE = 1  # the output at the end of a session
    SUMMARY = 2  # a comment on a pull request, and the first screen of report.html
    FULL = 3  # -v, and `agentbench show`
    VERBOSE = 4  # report.md, report.html, and -vv


#: The address of a page of the CI system: made by this package, and never from a text of a model, an agent or a tool.
PageAddress = NewType("PageAddress", str)

NOWHERE = PageAddress("")


@dataclass(frozen=True)
class Code:
    """A name, a command, or a quoted text of a program or person. Renderers set it apart from the sentence around it."""

    text: str
    # Pages link scenarios, runs and commits. Commands are never truncated or folded.
    kind: Literal["name", "scenario", "run", "commit", "command"] = "name"
    url: PageAddress = NOWHERE  # a page about it; Markdown links it, and other renderers ignore it

    @property
    def shown(self) -> str:
        """The text as Markdown and HTML show it: on one line, and truncated if it is long and not a command."""
        text = " ".join(self.text.split())
        return text if self.kind == "command" or len(text) <= LONGEST else f"{text[:LONGEST]}..."


Text = str | Code | tuple[str | Code, ...]


@dataclass(frozen=True)
class Finding:
    """Typed values and the phrase that turns them into a sentence. Findings are equal if their phrase and values are equal."""

    phrase: Callable[..., Text]
    values: tuple[Any, ...]

    @property
    def words(self) -> Text:
        """The sentence of the finding. A fact or note whose sentence is empty is not shown."""
        return self.phrase(*self.values)


def say(phrase: Callable[P, Text], *values: P.args, **named: P.kwargs) -> Finding:
    """Creates a finding from a phrase and its arguments, which have to be positional. Type checkers check their types."""
    assert not named
    return Finding(phrase, values)


@dataclass(frozen=True)
class Measure:
    """A number with its unit, its 95 % interval, and a remark."""

    value: float | None  # None if it was not measured
    unit: str = ""  # `ms`; `%` for a share, whose value lies between 0 and 1
    statistic: str = ""  # `median`; empty for a mean or a count
    low: float | None = None
    high: float | None = None
    digits: int = 3
    about: str = ""  # a remark, for example what the mean is over


TableCell = Text | Finding | float | None
Content = Text | Finding | Measure


@dataclass(frozen=True, kw_only=True)
class ReportBlock:
    """The base class of all blocks of a report. `level` and `until` are the lowest and the highest level at which a block is shown."""

    level: Level = Level.FULL  # the lowest level
    until: Level = Level.VERBOSE  # the highest level; above it, another block has the same content in full
    spare: int = 0  # on a first page that would be too long, blocks with the highest number are left out first


@dataclass(frozen=True)
class Fact(ReportBlock):
    """A label and its content. A fact without a label continues the previous one."""

    label: str
    content: Content
    tone: Tone = ""
    one_line: bool = False  # whether a terminal truncates it instead of folding it


@dataclass(frozen=True)
class Column:
    """A column of a table, with its title. Numbers are right-aligned, and have `digits` decimal places."""

    title: str
    digits: int | None = None  # None for a column of texts

    @property
    def has_numbers(self) -> bool:
        return self.digits is not None


def heads(*titles: str | tuple[str, int]) -> tuple[Column, ...]:
    """Creates columns: a string is the title of a column of texts, `(title, digits)` of a column of numbers."""
    return tuple(Column(title) if isinstance(title, str) else Column(*title) for title in titles)


@dataclass(frozen=True)
class Table(ReportBlock):
    """A table: rows of cells under the titles of its columns. The first columns identify a row."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    repeated: int = 1  # first columns that a terminal repeats in each part of a wide table
    tones: tuple[Tone, ...] = ()  # a tone for each row, with which a page colours its first cell; empty without tones

    def __post_init__(self) -> None:
        """Raises ValueError if a row does not have a cell for each column, or if only some have a tone (a choice of colour)."""
        if wrong := next((row for row in self.rows if len(row) != len(self.columns)), None):
            raise ValueError(f"a row has {len(wrong)} cells, but the table has {len(self.columns)} columns")
        if self.tones and len(self.tones) != len(self.rows):
            raise ValueError(f"{len(self.tones)} of {len(self.rows)} rows have a tone; give one to each row, or to none")


@dataclass(frozen=True)
class Bullets(ReportBlock):
    """A list of findings."""

    items: tuple[Content, ...]


@dataclass(frozen=True)
class Note(ReportBlock):
    """A paragraph that explains the previous block, or says what it leaves out."""

    content: Text | Finding
    tone: Tone = ""


@dataclass(frozen=True)
class Listing(ReportBlock):
    """Lines of a log, a file or a program's output, shown unchanged."""

    text: str


@dataclass(frozen=True)
class Figure(ReportBlock):
    """A picture file."""

    title: str
    path: str  # relative to the report


@dataclass(frozen=True)
class ChartPoint:
    """A point of a chart: a value with its interval."""

    value: float
    low: float | None
    high: float | None
    label: str  # a short text, shown below the first and the last point
    about: Finding  # the details of the point, shown as a tooltip
    tone: Tone = ""
    begins: bool = False  # whether the setup changed at this point, which a vertical line marks
    run: str = ""  # run of the point, which an HTML page links


@dataclass(frozen=True)
class Chart(ReportBlock):
    """A chart, which an HTML page draws from `points` in their order. A terminal and Markdown show only `title` and `content`."""

    title: str
    content: Finding
    points: tuple[ChartPoint, ...]
    unit: str = ""  # title of the vertical axis
    order: str = ""  # title of the horizontal axis


AnyBlock = Fact | Table | Bullets | Note | Listing | Figure | Chart


@dataclass(frozen=True)
class Section:
    """A part of a report: a title, which may be empty, and blocks or nested sections."""

    title: Text
    blocks: tuple[AnyBlock | Section, ...]
    folded: bool = False  # whether a page shows only the title until the reader opens the section

    def at(self, level: Level) -> Section | None:
        """Returns a section with only the blocks that are shown at a level, or None if none of them is."""
        blocks = tuple(_shown(self.blocks, level))
        return replace(self, blocks=blocks) if blocks else None

    def flat(self) -> Iterator[AnyBlock]:
        """Yields the blocks of the section and of its nested sections."""
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
    """A report: title, headline and sections."""

    title: Text
    headline: Fact | None  # None for reports without a verdict
    sections: tuple[Section, ...]

    @classmethod
    def of(cls, title: Text, parts: Iterable[Section | None], headline: Fact | None = None) -> Document:
        """Creates a document from those `parts` that are not None."""
        return cls(title, headline, tuple(part for part in parts if part))

    def at(self, level: Level) -> Document:
        """Returns a document with only the blocks that are shown at a level."""
        return self.of(self.title, (each.at(level) for each in self.sections), self.headline)

    def blocks(self) -> Iterator[AnyBlock]:
        """Yields all blocks from top to bottom."""
        for each in self.sections:
            yield from each.flat()


def section(title: Text, blocks: Iterable[AnyBlock | Section | None]) -> Section | None:
    """Creates a section from the blocks that are not empty, or returns None if all of them are.

    Nested sections are moved to the end, because in a text, blocks after a section would look like a part of it.
    """
    kept = [block for block in blocks if block is not None and not _is_empty(block)]
    return Section(title, tuple(sorted(kept, key=lambda block: isinstance(block, Section)))) if kept else None


def contents(block: AnyBlock) -> tuple[Any, ...]:
    """Returns everything that a block shows: texts, findings, measures and cells."""
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
    """Returns the sentence of a finding. Returns a text or a measure unchanged."""
    return content.words if isinstance(content, Finding) else content


def spans(text: Text) -> tuple[str | Code, ...]:
    """Returns a text as a tuple of its parts: strings, and `Code` objects for the names and commands in it."""
    return text if isinstance(text, tuple) else (text,)


def plain(text: Text) -> str:
    """Returns a text as one string, in which names and commands (`Code` objects) are not set apart."""
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
