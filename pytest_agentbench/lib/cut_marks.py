"""The mark of what was left out of a text. The redaction looks beside marks for halves of secrets, so each cutter writes this one."""

from __future__ import annotations

import re
from collections.abc import Iterator

_END = "left out]"

#: A mark with what stands between it and the text, also within JSON or where white space was collapsed.
_CUT = re.compile(
    r"(?:\ufffd|\\{1,31}ufffd)?(?:\s|\\{1,31}n)?"
    r"\[[0-9,]{1,20} (?:bytes|characters) left out\]"
    r"(?:\s|\\{1,31}n)?(?:\ufffd|\\{1,31}ufffd)?"
)


def mark(count: int, unit: str = "bytes") -> str:
    """Returns the mark of so many bytes or characters."""
    return f"[{count:,} {unit} {_END}"


def cuts(text: str) -> Iterator[re.Match[str]]:
    """Yields the marks in a text."""
    if _END in text:
        yield from _CUT.finditer(text)


def beginning(text: str | bytes, most: int) -> str:
    """Returns the first characters, or bytes, of a text, and how many are left out; a text that is short enough as it is."""
    start, unit = (text[:most].decode(errors="replace"), "bytes") if isinstance(text, bytes) else (text[:most], "characters")
    return start if len(text) <= most else f"{start} {mark(len(text) - most, unit)}"


def ending(text: str, most: int) -> str:
    """Returns how many characters are left out, and the last ones of a text; a text that is short enough as it is."""
    return text if len(text) <= most else f"{mark(len(text) - most, 'characters')} {text[len(text) - most :]}"
