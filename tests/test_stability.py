"""The page that says what is public is short. `tests.generated` keeps its table equal to the code."""

from __future__ import annotations

from pathlib import Path

PAGE = (Path(__file__).parents[1] / "docs/reference/stability.md").read_text(encoding="utf-8")


def test_the_page_is_short() -> None:
    """The page is read before each release, so it has fewer than 500 words."""
    assert len(PAGE.split()) < 500
