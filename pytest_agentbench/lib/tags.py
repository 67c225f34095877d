"""Texts between tags, as models write them. The time to find them grows with the text, also if many tags are never closed."""

from __future__ import annotations

import re


def tagged(text: str, tag: str) -> list[str]:
    """Returns each text from `<tag>` to the next `</tag>`, without them. Ignores case, and tags that are not closed."""
    found: list[str] = []
    start: int | None = None
    for mark in re.finditer(rf"<(/?){re.escape(tag)}>", text, re.IGNORECASE):
        if not mark[1]:
            start = mark.end() if start is None else start
        elif start is not None:
            found.append(text[start : mark.start()])
            start = None
    return found
