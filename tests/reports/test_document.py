"""The levels of a document, and the removal of empty blocks."""

from __future__ import annotations

import pytest

from pytest_agentbench.reports.document import (
    Bullets,
    Code,
    Column,
    Content,
    Document,
    Fact,
    Figure,
    Finding,
    Level,
    Listing,
    Measure,
    Note,
    Section,
    Table,
    Text,
    heads,
    plain,
    say,
    section,
    spans,
    words_of,
)


def lamps(amount: int) -> str:
    """A phrase that is empty for an empty value."""
    return f"{amount} lamps" if amount else ""


def chairs(amount: int) -> str:
    return f"{amount} lamps" if amount else ""


FACTS = tuple(Fact(level.name, "a text", level=level) for level in Level)


def labels(shown: Section | Document | None) -> list[str]:
    """Returns the labels of the shown blocks."""
    if shown is None:
        return []
    blocks = shown.blocks() if isinstance(shown, Document) else shown.flat()
    return [each.label for each in blocks if isinstance(each, Fact)]


@pytest.mark.parametrize("level", Level)
def test_levels(level: Level) -> None:
    """A level shows the blocks of this and all lower levels."""
    assert [each.name for each in Level if each <= level] == labels(Section("", FACTS).at(level))


def test_blocks_with_a_last_level() -> None:
    """A block is not shown above its last level."""
    short, full = Fact("short", "a", level=Level.FIRST_PAGE, until=Level.SUMMARY), Fact("full", "a and b", level=Level.FULL)
    shown = [labels(Section("", (short, full)).at(level)) for level in Level]

    assert [[], ["short"], ["short"], ["full"], ["full"]] == shown


def test_nested_sections() -> None:
    """Levels also apply to nested sections. Sections that become empty are removed, also if they only contained empty sections."""
    inner = Section("inner", (Fact("c", "c", level=Level.VERBOSE),))
    outer = Section("outer", (Fact("a", "a"), inner, Fact("b", "b", level=Level.SUMMARY)))
    only = Section("only", (inner,))

    assert ["a", "c", "b"] == labels(outer)
    assert Section("outer", (Fact("a", "a"), Fact("b", "b", level=Level.SUMMARY))) == outer.at(Level.FULL)
    assert outer == outer.at(Level.VERBOSE)
    assert (None, only) == (only.at(Level.FULL), only.at(Level.VERBOSE))
    document = Document("", None, (only, outer))
    assert (["outer"], ["b"]) == ([each.title for each in document.at(Level.SUMMARY).sections], labels(document.at(Level.SUMMARY)))


def test_nested_sections_come_last() -> None:
    """Nested sections come last, because blocks after a section would look like a part of it."""
    inner, first, last = Section("inner", (Note("a"),)), Note("b"), Note("c")

    found = section("outer", [first, inner, last])

    assert found is not None
    assert (first, last, inner) == found.blocks


def test_the_headline_stays() -> None:
    """All levels have the headline, also without sections."""
    headline = Fact("verdict", "PASS", "good", level=Level.HEADLINE)

    assert Document("a", headline, ()) == Document("a", headline, (Section("b", (Fact("c", "c"),)),)).at(Level.HEADLINE)


@pytest.mark.parametrize(
    "block",
    [
        None,
        Fact("a", ""),
        Fact("a", ("", Code(""))),
        Fact("a", say(lamps, 0)),
        Note(say(lamps, 0)),
        Note(""),
        Table(heads("a"), ()),
        Bullets(()),
    ],
)
def test_empty_blocks(block: Fact | Note | Table | Bullets | None) -> None:
    """Empty blocks are removed, and so are sections with only such blocks."""
    kept = Fact("b", "b")

    assert section("a", [block]) is None
    assert Section("a", (kept,)) == section("a", [block, kept, block])


def test_blocks_that_are_kept() -> None:
    """A measure without a value, an empty listing and any section are not removed."""
    kept = (
        Fact("a", Measure(None)),
        Fact("", say(lamps, 1)),
        Note(Code("b")),
        Listing(""),
        Figure("a", "a.svg"),
        Section("c", (Note("d"),)),
    )

    assert Section("e", kept) == section("e", kept)
    assert section("e", [section("f", [Fact("a", "")])]) is None


def test_findings() -> None:
    """Findings are equal if phrase and values are equal."""
    assert say(lamps, 2) == say(lamps, 2)
    assert hash(say(lamps, 2)) == hash(say(lamps, 2))
    assert say(lamps, 2) != say(lamps, 3)
    assert say(lamps, 2) != say(chairs, 2)
    assert say(lamps, 2).words == say(chairs, 2).words == "2 lamps"
    assert Fact("a", say(lamps, 2)) == Fact("a", say(lamps, 2))
    assert Finding(lamps, (2,)) == say(lamps, 2)


def test_columns() -> None:
    """A title gives a column of texts. A title with a number gives a column of numbers with that many decimal places."""
    assert (Column("a"), Column("b", 2), Column("c", 0)) == heads("a", ("b", 2), ("c", 0))
    assert [False, True, True] == [each.has_numbers for each in heads("a", ("b", 2), ("c", 0))]


@pytest.mark.parametrize(
    ("content", "words"),
    [("a", "a"), (Code("a"), "a"), (("a ", Code("b", "command")), "a b"), (say(lamps, 2), "2 lamps")],
)
def test_texts(content: Content, words: str) -> None:
    """`plain` joins the parts of a text."""
    found = words_of(content)

    assert not isinstance(found, Measure)
    assert words == plain(found)
    assert words == "".join(map(plain, spans(found)))
    assert isinstance(spans(found), tuple)


def test_measures_and_texts_are_returned_unchanged() -> None:
    """`words_of` returns measures and texts unchanged."""
    measure, text = Measure(1.0, "ms"), ("a", Code("b"))
    content: list[Text | Measure] = [words_of(measure), words_of(text)]

    assert [measure, text] == content
