"""Renders a document as lines of a terminal: labels in one column with texts beside them, and tables."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from pytest_agentbench.lib.foreign import one_line
from pytest_agentbench.records import Rollout
from pytest_agentbench.reports import phrases
from pytest_agentbench.reports.columns import columns, cut, fold, table_lines
from pytest_agentbench.reports.document import (
    AnyBlock,
    Bullets,
    Chart,
    Code,
    Content,
    Document,
    Fact,
    Figure,
    Level,
    Listing,
    Note,
    Section,
    Table,
    Text,
    Tone,
    plain,
    spans,
)

WIDTH = 80  # columns, if the width of the terminal is unknown
MOST = 12  # lines of the first page, without the rule above it
LABEL = 11  # minimum width of the column of labels
INDENT = "    "  # before a line of a log, so that it cannot look like a line of a report

#: Tone -> the terminal's colour.
COLOURS: Mapping[Tone, str] = {"good": "green", "bad": "red", "open": "yellow", "": ""}


class TerminalReporter(Protocol):
    """The methods of pytest's terminal reporter that this module uses."""

    def write_sep(self, sep: str, title: str, **markup: bool) -> None: ...

    def write_line(self, line: str, **markup: bool) -> None: ...


class Line(NamedTuple):
    """A line of a terminal. Its text contains no line breaks and no control characters."""

    text: str
    tone: Tone = ""
    bold: bool = False


def write_run(terminal: TerminalReporter, document: Document, verbosity: int = 0, width: int = WIDTH, details: Iterable[str] = ()) -> None:
    """Writes a report: one line with -q, the first page by default, all but long tables with -v, and everything with -vv.

    On the first page, lines are folded to the width, except commands and paths. At other levels they are never folded.
    `details` are the `rollout_lines` of all rollouts; they are written last.
    """
    level = Level.HEADLINE if verbosity < 0 else (Level.FIRST_PAGE, Level.FULL, Level.VERBOSE)[min(verbosity, 2)]
    if level == Level.HEADLINE:
        for text in headline_lines(document):
            terminal.write_line(text)
        return
    terminal.write_sep("=", "agentbench", bold=True)
    write(terminal, lines(document, level, width if level == Level.FIRST_PAGE else sys.maxsize))
    write(terminal, (Line(one_line(each)) for each in details))


def write(terminal: TerminalReporter, lines: Iterable[Line]) -> None:
    """Writes lines to the terminal. The tone of a line (`good`, `bad` or `open`) decides its colour."""
    for line in lines:
        colour = {COLOURS[line.tone]: True} if line.tone else {}
        terminal.write_line(line.text, **({"bold": True} if line.bold else {}), **colour)


def headline_lines(document: Document) -> Iterator[str]:
    """Yields the output of -q: one line with the headline and the most important facts, and a line for each command."""
    facts = [each for each in document.at(Level.HEADLINE).blocks() if isinstance(each, Fact)]
    commands = [fact for fact in facts if _has_command(phrases.words(fact.content))]
    sentences = [document.headline, *facts] if document.headline else facts
    yield one_line(f"agentbench: {'; '.join(_words(fact.content) for fact in sentences if fact not in commands)}")
    yield from (one_line(f"agentbench: {fact.label} {_words(fact.content)}") for fact in commands)


def lines(document: Document, level: Level, width: int = sys.maxsize) -> Iterator[Line]:
    """Yields the lines of a document at a level. The first page has no section titles, and all its labels are in one column."""
    shown = document.at(level)
    headline = [document.headline] if document.headline else []
    if level == Level.FIRST_PAGE:
        yield from _first_page(document.headline, [*headline, *shown.blocks()], width)
        return
    layout = _TerminalLayout(LABEL, width)
    for fact in headline:
        yield from (line._replace(bold=True) for line in layout.fact(fact))
    for section in shown.sections:
        yield from layout.section(section)


def _first_page(headline: Fact | None, blocks: Sequence[AnyBlock], width: int) -> list[Line]:
    """Returns the lines of the first page, at most MOST of them. The headline and commands are always among them.

    Other blocks are on it if they fit: those with the lowest `spare` first, and of equal ones the first. A fact without a label goes with
    the block before it. A log that is too long loses its first lines.
    """
    groups: list[list[AnyBlock]] = []
    for block in blocks:
        if groups and isinstance(block, Fact) and not block.label:
            groups[-1].append(block)
        else:
            groups.append([block])

    def page(places: Iterable[int]) -> list[Line]:
        chosen = [block for place in sorted(places) for block in groups[place]]
        labels = [columns(one_line(fact.label)) for fact in chosen if isinstance(fact, Fact)]
        layout = _TerminalLayout(min(max([LABEL, *labels]), width // 3), width)
        return [line._replace(bold=block is headline) for block in chosen for line in layout.block(block)]

    shown = {place for place, group in enumerate(groups) if any(each is headline or _has_a_command(each) for each in group)}
    for place in sorted({*range(len(groups))} - shown, key=lambda place: (groups[place][0].spare, place)):
        if isinstance(log := groups[place][0], Listing):
            groups[place] = [replace(log, text="\n".join(log.text.split("\n")[-max(1, MOST - len(page(shown))) :]))]
        if len(page({*shown, place})) <= MOST:
            shown.add(place)
    return page(shown)


def _has_a_command(block: AnyBlock) -> bool:
    return isinstance(block, Fact) and _has_command(phrases.words(block.content))


class _TerminalLayout(NamedTuple):
    """Turns the sections and blocks of a document into lines of a terminal."""

    column: int  # width of the column of labels
    width: int  # width of the terminal, in columns

    def section(self, section: Section) -> Iterator[Line]:
        if plain(section.title):
            yield from (Line(text, bold=True) for text in fold(one_line(plain(section.title)), self.width))
        for block in section.blocks:
            if isinstance(block, Section):
                yield from self.section(block)
            else:
                yield from self.block(block)

    def block(self, block: AnyBlock) -> Iterator[Line]:
        match block:
            case Fact():
                yield from self.fact(block)
            case Table():
                yield from (Line(text) for text in table_lines(block, self.width))
            case Bullets():
                yield from (line for item in block.items for line in self._labelled("-", 1, item))
            case Note():
                yield from (Line(text, block.tone) for text in fold(one_line(_words(block.content)), self.width))
            case Listing():
                yield from (Line(f"{'':<{self.column}} {INDENT}{one_line(text)}") for text in block.text.split("\n"))
            case Figure():
                yield from self._labelled("picture", self.column, (f"{block.title}: ", Code(block.path, "command")))
            case Chart():
                yield from self._labelled(block.title, self.column, block.content)

    def fact(self, fact: Fact) -> Iterator[Line]:
        yield from (line._replace(tone=fact.tone) for line in self._labelled(fact.label, self.column, fact.content, cut_it=fact.one_line))

    def _labelled(self, label: str, column: int, content: Content, *, cut_it: bool = False) -> Iterator[Line]:
        label, words = one_line(label), phrases.words(content)
        text, available = one_line(plain(words)), max(self.width - max(column, columns(label)) - 1, self.width // 3)
        texts = [text] if _has_command(words) else [cut(text, available)] if cut_it else fold(text, available)
        for each in texts:
            yield Line(f"{label}{' ' * (column - columns(label))} {each}".rstrip())
            label = ""


def _words(content: Content) -> str:
    return plain(phrases.words(content))


def _has_command(text: Text) -> bool:
    return any(isinstance(part, Code) and part.kind == "command" for part in spans(text))


def rollout_lines(rollout: Rollout, *, with_tools: bool) -> Iterator[str]:
    """Yields the lines that a terminal shows of a rollout: one with -v, and with -vv another one with its tools."""
    yield f"  {phrases.rollout(rollout)}"
    if with_tools:
        yield f"      {phrases.expected_and_actual(rollout.expected_tools, rollout.tools)}"
