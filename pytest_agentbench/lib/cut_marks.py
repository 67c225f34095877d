"""Truncates texts and marks the place: `[1,234 bytes left out]` replaces the part that is left out.

All code of this package that truncates texts writes this mark, because the redaction searches for truncated secrets next to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_END = "left out]"

#: A mark with the separators around it, also within JSON or after white space was collapsed.
_CUT = re.compile(
    r"(?:\ufffd|\\{1,31}ufffd)?(?:\s|\\{1,31}n)?"
    r"\[[0-9,]{1,20} (?:bytes|characters) left out\]"
    r"(?:\s|\\{1,31}n)?(?:\ufffd|\\{1,31}ufffd)?"
)


def mark(count: int, unit: str = "bytes") -> str:
    """Returns the mark for `count` bytes or characters that are left out."""
    return f"[{count:,} {unit} {_END}"


def cuts(text: str) -> Iterator[re.Match[str]]:
    """Yields the position of each truncation mark in a text."""
    if _END in text:
        yield from _CUT.finditer(text)


def beginning(text: str | bytes, most: int) -> str:
    """Truncates a text to its first `most` characters (or bytes), followed by the mark. Short texts stay unchanged."""
    start, unit = (text[:most].decode(errors="replace"), "bytes") if isinstance(text, bytes) else (text[:most], "characters")
    return start if len(text) <= most else f"{start} {mark(len(text) - most, unit)}"


def ending(text: str, most: int) -> str:
    """Truncates a text to its last `most` characters, preceded by the mark. Short texts stay unchanged."""
    return text if len(text) <= most else f"{mark(len(text) - most, 'characters')} {text[len(text) - most :]}"
