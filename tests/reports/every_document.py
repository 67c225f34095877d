"""Documents with every kind of block and every kind of text, one of which may be hostile.

They are made from the fields of the classes in `document`, so that new blocks and fields are included.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from itertools import chain
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pytest_agentbench.reports.document import (
    NOWHERE,
    AnyBlock,
    Code,
    Document,
    Finding,
    Level,
    Note,
    PageAddress,
    ReportBlock,
    Section,
    Table,
    TableCell,
    Text,
    Tone,
)

NOTE = Note("a note", level=Level.HEADLINE)
SECTION = Section("A section", (NOTE,))
REST = Section("The rest", (Note("a detail", level=Level.VERBOSE),))  # so that a page has a part below its first screen

#: Values of types that are not made from their fields: those without texts, and those that contain blocks again.
GIVEN: dict[Any, list[Any]] = {
    Level: [Level.VERBOSE],
    tuple[AnyBlock | Section, ...]: [(NOTE,)],
    tuple[Section, ...]: [(SECTION, REST)],
    tuple[Tone, ...]: [()],
    PageAddress: [NOWHERE, PageAddress("https://git.example/a")],
    float: [1.5],
    int: [1],
    bool: [False, True],
    type(None): [None],
}


def as_it_is(text: Text) -> Text:
    """A phrase of findings whose value is their text."""
    return text


hints_of = lru_cache(get_type_hints)


class Documents:
    """Makes documents. Each text in them has a number from 0 on. The text at `place` is `text`, and all others are harmless."""

    def __init__(self, place: int, text: str) -> None:
        self.places = 0
        self._place, self._text = place, text

    def all(self) -> list[Document]:
        """Returns a document for each block with each kind of content, and for each kind of title and headline."""
        blocks = list(chain.from_iterable(map(self._every, get_args(AnyBlock))))
        titled = [replace(SECTION, blocks=(NOTE, each)) for each in self._every(Section)]
        sections = [*(replace(SECTION, blocks=(each,)) for each in blocks), *titled, *self._every(Section)]
        return [*(Document("A run", None, (each, REST)) for each in sections), *self._every(Document)]

    def _every(self, kind: Any) -> list[Any]:
        """Returns a value for each alternative of a type."""
        made: list[Any]
        if kind in GIVEN:
            made = GIVEN[kind]
        elif kind is str:
            made = [self._next()]
        elif kind is Finding:
            made = [Finding(as_it_is, (each,)) for each in self._every(Text)]
        elif is_dataclass(kind):
            made = list(self._instances(kind))
        elif get_origin(kind) is Literal:
            made = list(get_args(kind))
        elif get_origin(kind) in (Union, UnionType):
            made = list(chain.from_iterable(map(self._every, get_args(kind))))
        elif kind == tuple[str | Code, ...]:
            made = [tuple(part for each in self._every(str | Code) for part in (" ", each))[1:]]
        else:
            assert get_origin(kind) is tuple, f"{kind} is a type that tests of renderers do not know"
            made = [tuple(self._every(get_args(kind)[0]))]
        return made

    def _instances(self, kind: Any) -> Iterator[Any]:
        """Yields enough instances that each field has each of its alternatives."""
        hints = hints_of(kind)
        values = {
            field.name: self._every(hints[field.name]) for field in fields(kind) if hints[field.name] != tuple[tuple[TableCell, ...], ...]
        }
        if kind is Table:
            rows, tones = self._rows(len(values["columns"][0])), get_args(Tone)
            values["rows"], values["tones"] = [rows], [(), tuple(tones[number % len(tones)] for number in range(len(rows)))]
        for number in range(max(map(len, values.values()))):
            made = kind(**{name: every[number % len(every)] for name, every in values.items()})
            yield replace(made, level=Level.HEADLINE) if isinstance(made, ReportBlock) else made

    def _rows(self, width: int) -> tuple[tuple[Any, ...], ...]:
        """Returns rows in which each kind of cell is in each column."""
        cells = self._every(TableCell)
        return tuple(tuple(cells[(number + place) % len(cells)] for place in range(width)) for number in range(len(cells)))

    def _next(self) -> str:
        place, self.places = self.places, self.places + 1
        return self._text if place == self._place else f"word{place}"


def places() -> int:
    """Returns the number of texts in the documents."""
    made = Documents(-1, "")
    made.all()
    return made.places


@lru_cache
def with_text(place: int, text: str) -> list[Document]:
    """Returns the documents that have a text at a place."""
    return [each for each, other in zip(Documents(place, text).all(), harmless(), strict=True) if each != other]


@lru_cache
def harmless() -> list[Document]:
    """Returns all documents without a hostile text."""
    return Documents(-1, "").all()
