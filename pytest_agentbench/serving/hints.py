"""What is known of the ends of engines' logs."""

from __future__ import annotations

from collections.abc import Sequence


def hint(lines: Sequence[str]) -> str | None:
    """A sentence with the fix for a failure whose cause is known."""
    del lines
    return None
