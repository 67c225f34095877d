"""Texts that are too long: their beginnings and their ends say most."""

from __future__ import annotations


def without_middle(text: str, most: int) -> str:
    """The text, or its first and last characters, `most` in all, with a line between them that says how many are left out."""
    if len(text) <= most:
        return text
    end = most // 2
    start = most - end
    return f"{text[:start]}\n[{len(text) - most} characters left out]\n{text[len(text) - end :]}"
