"""Texts that UTF-8 can hold: what models and programs write may have half a character in it."""

from __future__ import annotations


def whole_characters(text: str) -> str:
    """The text with U+FFFD in place of each half of a character (a lone surrogate); two halves that meet are the character."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
