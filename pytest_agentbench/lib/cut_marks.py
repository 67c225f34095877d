"""Marks in texts that were cut. The redaction looks beside them for halves of secrets, so a text that it has not seen is cut with one."""

from __future__ import annotations

import re
from collections.abc import Iterator

_ENDS = ("left out]", "cut]", "omitted ...]")

#: The mark of any cutter of this package with what stands between it and the text, also within JSON or where white space was collapsed.
_CUT = re.compile(
    r"(?:\ufffd|\\{1,31}ufffd)?(?:\s|\\{1,31}n)?"
    r"\[(?:\.\.\. )?[0-9,]{1,20} (?:bytes|characters) (?:left out|cut|omitted)(?: \.\.\.)?\]"
    r"(?:\s|\\{1,31}n)?(?:\ufffd|\\{1,31}ufffd)?"
)


def cuts(text: str) -> Iterator[re.Match[str]]:
    """Yields the marks in a text."""
    if any(end in text for end in _ENDS):
        yield from _CUT.finditer(text)


def beginning(text: str | bytes, most: int) -> str:
    """Returns the first characters, or bytes, of a text, and how many are left out; a text that is short enough as it is."""
    start, unit = (text[:most].decode(errors="replace"), "bytes") if isinstance(text, bytes) else (text[:most], "characters")
    return start if len(text) <= most else f"{start} [{len(text) - most:,} {unit} left out]"


def ending(text: str, most: int) -> str:
    """Returns how many characters are left out, and the last ones of a text; a text that is short enough as it is."""
    return text if len(text) <= most else f"[{len(text) - most:,} characters left out] {text[len(text) - most :]}"
