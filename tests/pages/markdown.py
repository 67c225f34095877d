"""Texts of the code as Markdown, for the generated parts of pages."""

from __future__ import annotations

import re


def prose(text: str) -> str:
    """Returns a text on one line, in which `<` outside of code does not begin an element of HTML."""
    return re.sub(r"`[^`]*`|<", lambda match: "&lt;" if match[0] == "<" else match[0], " ".join(text.split()))


def table_row(*cells: str) -> str:
    """Returns a row of a table with these texts."""
    row = " | ".join(prose(cell).replace("|", "\\|") for cell in cells)
    return f"| {row} |".replace("|  |", "| |").replace("|  |", "| |")
