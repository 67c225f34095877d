"""Text in the columns of a terminal: how many it takes, cut to so many, or folded into several lines."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from itertools import accumulate

DOTS = "..."  # for what is left out


def columns(text: str) -> int:
    """How many columns a terminal takes for a text: two for a wide character, none for one that stands on the one before."""
    return sum(0 if unicodedata.combining(letter) else 1 + (unicodedata.east_asian_width(letter) in "FW") for letter in text)


def cut(text: str, width: int) -> str:
    """The text in at most so many columns."""
    if columns(text) <= width:
        return text
    room, taken = width - len(DOTS), accumulate(map(columns, text))
    end = next(place for place, so_far in enumerate(taken) if so_far > room)
    return text[:end].rstrip() + DOTS[: max(width, 0)]


def fold(text: str, width: int) -> Iterator[str]:
    """The text in lines of at most so many columns, broken where a space is; a word that is longer has a line of its own."""
    line = ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else word
        if line and columns(longer) > width:
            yield line
            longer = word
        line = longer
    yield line
